"""Real sshd on the lab's hosts, with keys of their own, and the ssh that reaches them."""

import os
import socket

import lab

SSHD = """
Port 22
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/user_key.pub
AuthenticationMethods publickey
PermitRootLogin yes
StrictModes no
UsePAM no
PrintMotd no
"""
SSH = """
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
"""


def start_servers(hosts, hidden):
    """Starts sshd on each host, where the folder `hidden` is empty. Returns the words that call ssh with the lab's
    configuration."""
    os.makedirs("/run/sshd", mode=0o755)  # Where sshd locks up its children.
    for name in ("host_key", "user_key"):
        lab.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{lab.FOLDER}/{name}")
    with open(f"{lab.FOLDER}/host_key.pub", encoding="utf-8") as key:
        host_key = key.read()
    with open(f"{lab.FOLDER}/known_hosts", "w", encoding="utf-8") as known:
        known.writelines(f"{host.name},{host.address} {host_key}" for host in hosts)
    for name, text in (("sshd_config", SSHD), ("ssh_config", SSH)):
        with open(f"{lab.FOLDER}/{name}", "w", encoding="utf-8") as config:
            config.write(text.format(folder=lab.FOLDER))
    for host in hosts:
        # sshd starts itself again for each connection, so it must be called by its whole path.
        lab.start_daemon(host.command("/usr/sbin/sshd", "-D", "-e", "-f", f"{lab.FOLDER}/sshd_config",
                                      hidden=hidden), f"sshd-{host.name}")
    for host in hosts:
        lab.until(lambda: _listens(host.address), 20, f"sshd on {host.name}")
    return ["ssh", "-F", f"{lab.FOLDER}/ssh_config"]


def _listens(address):
    try:
        with socket.create_connection((address, 22), timeout=1):
            return True
    except OSError:
        return False
