#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a guest: loads what the host's file system needs, and makes it the root, below a layer in memory
# that takes all writes. The folders hold no secret of the kernel's version: the host filled them.
BUSYBOX=/bin/busybox

fail() {
  echo "GUEST FAILED: $*"
  $BUSYBOX poweroff -f
}

$BUSYBOX mount -t proc proc /proc
$BUSYBOX mount -t sysfs sys /sys
$BUSYBOX mount -t devtmpfs dev /dev
for module in $($BUSYBOX cat /modules/order); do
  $BUSYBOX insmod "/modules/$module" || fail "insmod $module"
done
OPTIONS=trans=virtio,version=9p2000.L,msize=512000
$BUSYBOX mount -t 9p -o "ro,cache=loose,$OPTIONS" host /lower || fail "mounting the host's files"
$BUSYBOX mount -t tmpfs -o size=50% layer /layer
$BUSYBOX mkdir /layer/upper /layer/work
$BUSYBOX mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,xino=off root /merged ||
  fail "the layer over the host's files"
for folder in proc sys dev; do $BUSYBOX mount --move "/$folder" "/merged/$folder"; done
exec </merged/dev/null >/merged/dev/console 2>&1
$BUSYBOX mkdir -p /merged/dev/shm /merged/dev/pts /merged/out /merged/together /merged/lib/modules
$BUSYBOX mount -t tmpfs shm /merged/dev/shm
$BUSYBOX mount -t devpts pts /merged/dev/pts
$BUSYBOX mount -t tmpfs run /merged/run
$BUSYBOX mount -t 9p -o "rw,cache=none,$OPTIONS" out /merged/out || fail "mounting the guest's folder"
$BUSYBOX mount -t 9p -o "rw,cache=none,$OPTIONS" together /merged/together || fail "mounting the common folder"
# The kernel loads further modules by /sbin/modprobe, in the root of process 1: so this process itself must change it.
$BUSYBOX mount --bind /merged/out/modules /merged/lib/modules || fail "the modules"
exec $BUSYBOX switch_root /merged /bin/sh /out/guest.sh
