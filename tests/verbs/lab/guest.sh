#!/bin/sh
# Process 1 of a guest once it has its root: makes the network and the soft-RoCE device, and runs the cases of /out/plan,
# one after the other. Two guests begin and end each case together.
# /out/settings gives GUEST, GUESTS, ADDRESS, LIMIT and WORK.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
# shellcheck source=/dev/null
. /out/settings

finish() {
  echo "$1" >/out/result.part
  mv /out/result.part /out/result
  echo o >/proc/sysrq-trigger
  sleep 60
}

# until_is SECONDS COMMAND...: tries the command until it succeeds.
until_is() {
  tries=$(($1 * 10))
  shift
  until "$@"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || return 1
    sleep 0.1
  done
}

setup() {
  hostname "guest$GUEST"
  ip link set lo up
  if [ "$GUESTS" = 1 ]; then
    modprobe dummy numdummies=0 && ip link add eth0 type dummy
  else
    # A packet is the network card's alone once it is sent. Else one that waits in the card when the link goes down holds its queue
    # pair, whose end then waits 50 s for it; and the kernel crashes when the link comes up again (rxe_skb_tx_dtor, Linux 6.1).
    modprobe virtio_net napi_tx=0
  fi
  ip link set eth0 mtu 4200 && ip addr add "$ADDRESS/24" dev eth0 && ip link set eth0 up || return 1
  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0
}

# The address becomes a GID a moment after the interface is up.
has_gid() { grep -q "0000:0000:0000:0000:0000:ffff" /sys/class/infiniband/rxe0/ports/1/gids/1; }
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

# Waits for the other guest.
meet() {
  [ "$GUESTS" = 1 ] && return
  touch "/together/$1.$GUEST"
  until_is "$((LIMIT + 30))" [ -e "/together/$1.$((1 - GUEST))" ]
}

# What a case may leave behind.
clean() {
  tc qdisc del dev eth0 root
  tc qdisc del dev eth0 clsact
  ip link set eth0 mtu 4200
  ip link set eth0 up
  ip -6 addr flush dev eth0 scope global
  rm -f /out/rank* /out/ended /out/pause /out/resumed
} 2>/dev/null

run_case() {
  meet "$1.next" || return 1  # Both have ended the case before.
  clean
  until_is 30 has_gid
  meet "$1.begins" || return 1
  before=$(packets)
  setsid sh "/out/$1.sh" >"/out/$1.log" 2>&1 &
  group=$!
  { sleep "$LIMIT" && kill -9 "-$group"; } &
  guard=$!
  wait "$group"
  status=$?
  kill "$guard"
  kill -9 "-$group" 2>/dev/null
  echo $(($(packets) - before)) >"/out/$1.packets"
  cut -d ' ' -f 1 /proc/uptime >"/out/$1.ended"
  [ "$status" = 0 ] || cat /out/rank* >>"/out/$1.log" 2>/dev/null
  echo "$status" >"/out/$1.result"
}

if ! setup; then
  dmesg | tail -20
  finish setup
fi
echo "GUEST READY"
cd "$WORK" || finish setup
cut -d ' ' -f 1 /proc/uptime >/out/booted
PORT=29000
while read -r name; do
  PORT=$((PORT + 1))
  export PORT
  run_case "$name" </dev/null || break
done </out/plan
finish over
