#!/bin/sh
# Starts sshd in a guest, with keys that both guests make together. Writes /run/ssh/config for ssh.
mkdir -p /run/ssh /run/sshd || exit 1
cd /run/ssh || exit 1
if [ "$(hostname)" = guest0 ]; then
  ssh-keygen -q -t ed25519 -N "" -f host_key || exit 1
  ssh-keygen -q -t ed25519 -N "" -f user_key || exit 1
  cp host_key host_key.pub user_key user_key.pub /together/ && touch /together/keys || exit 1
else
  until [ -e /together/keys ]; do sleep 0.1; done
  cp /together/host_key /together/host_key.pub /together/user_key /together/user_key.pub . || exit 1
fi
chmod 600 host_key user_key
cat >sshd_config <<'CONFIG'
Port 22
HostKey /run/ssh/host_key
PidFile none
AuthorizedKeysFile /run/ssh/user_key.pub
AuthenticationMethods publickey
PermitRootLogin yes
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
AcceptEnv ANNULUS_*
CONFIG
for address in 10.77.0.1 10.77.0.2; do echo "$address $(cat host_key.pub)"; done >known_hosts
cat >config <<'CONFIG'
Host *
  IdentityFile /run/ssh/user_key
  IdentitiesOnly yes
  UserKnownHostsFile /run/ssh/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  # The usual one, sntrup761, takes an emulated processor seconds.
  KexAlgorithms curve25519-sha256
CONFIG
/usr/sbin/sshd -f /run/ssh/sshd_config || exit 1
touch "/together/$(hostname).listens"
until [ -e /together/guest0.listens ] && [ -e /together/guest1.listens ]; do sleep 0.1; done
