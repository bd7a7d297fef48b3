#!/bin/sh
# The guest's first program: puts a layer of RAM over the host's root file system, which stays read-only, and
# goes on there. Where it fails the kernel panics, QEMU ends, and the console has the message.
set -e
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules/order

mkdir /lower /upper /new
# cache=loose: the host's files are taken not to change while the guest runs.
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose host /lower
mount -t tmpfs tmpfs /upper
mkdir /upper/upper /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /new

mount -t tmpfs tmpfs /new/run
cp -r /guest /new/run/guest
for directory in proc sys dev; do mount --move "/$directory" "/new/$directory"; done
exec switch_root /new /bin/bash /run/guest/guest.sh
