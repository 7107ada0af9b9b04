#!/bin/sh
# Process 1 of a guest once it has its root: makes the network and the soft-RoCE device, and runs the case.
# /out/settings gives GUEST, GUESTS, ADDRESS, LOSS and WORK.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
# shellcheck source=/dev/null
. /out/settings

finish() {
  echo "$1" >/out/result.part
  mv /out/result.part /out/result
  echo o >/proc/sysrq-trigger
  sleep 60
}

setup() {
  hostname "guest$GUEST"
  ip link set lo up
  if [ "$GUESTS" = 1 ]; then
    modprobe dummy numdummies=0 && ip link add eth0 type dummy
  else
    modprobe virtio_net
  fi
  ip link set eth0 mtu 4200 && ip addr add "$ADDRESS/24" dev eth0 && ip link set eth0 up || return 1
  [ -z "$LOSS" ] || tc qdisc add dev eth0 root netem loss "$LOSS" limit 10000 || return 1
  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0 || return 1
  # The address becomes a GID a moment later.
  tries=0
  until grep -q "0000:0000:0000:0000:0000:ffff" /sys/class/infiniband/rxe0/ports/1/gids/1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || return 1
    sleep 0.1
  done
}

packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

if ! setup; then
  dmesg | tail -20
  finish setup
fi
echo "GUEST READY"
before=$(packets)
cd "$WORK" || finish setup
sh /out/case.sh >/out/log 2>&1
status=$?
echo $(($(packets) - before)) >/out/packets
cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_seq_err >/out/sequence_errors
finish $status
