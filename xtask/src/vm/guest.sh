#!/bin/bash
# Process 1 of the guest, on the host's own root file system: sets up what a running system has, then runs
# /run/guest/command and reports through three virtio ports: "stdout", "stderr" and "status". What is said
# here goes to the console.
set -eu
cd /run/guest
. ./settings

fail() {
  echo "The guest could not be set up."
  echo o >/proc/sysrq-trigger
  sleep 60
}
trap fail EXIT

wait_until() {
  for ((i = 0; i < 600; i++)); do
    if "$@"; then return; fi
    sleep 0.1
  done
  echo "waited in vain: $*"
  return 1
}

# The ports come up one by one, under names that count the machine's virtio devices.
port_named() {
  for port in /sys/class/virtio-ports/*; do
    if [ "$(cat "$port/name" 2>/dev/null)" = "$1" ]; then ln -s "/dev/${port##*/}" "$1.port"; return; fi
  done
  return 1
}
for name in status stdout stderr; do wait_until port_named $name; done
exec 3>status.port

mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mkdir -p "$out"
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 out "$out"
echo "$host_name" >/proc/sys/kernel/hostname

ip link set lo up
[ "$net_device" = eth0 ] || ip link add "$net_device" type dummy
# RoCE's MTU is the largest power of two that fits with the headers: 4096.
ip link set "$net_device" mtu 4500
# Before the address, so that a host which answers has its device.
[ "$rdma" = no ] || rdma link add rxe0 type rxe netdev "$net_device"
ip addr add "$address/24" dev "$net_device"
ip link set "$net_device" up

port_is_usable() {
  printf -v gid '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${address//./ }
  [ "$(cat "$1/state")" = "4: ACTIVE" ] && grep -qs "$gid" "$1"/gids/*
}
[ "$rdma" = no ] || wait_until port_is_usable /sys/class/infiniband/rxe0/ports/1
# Neither host of a pair starts before the other can be reached.
[ -z "$peer" ] || wait_until busybox ping -q -c 1 -W 1 "$peer" >/dev/null

# Pipes, because a port can be opened only once and a program may well open /dev/stderr.
mkfifo -m 666 stdout stderr
cat stdout >stdout.port & readers=$!
cat stderr >stderr.port & readers+=" $!"

ulimit -n 65536
ulimit -l "$memlock"
# An ordinary user may still read what root may: the build can be in a directory of root's.
run=(bash /run/guest/command)
[ -z "$user" ] || run=(setpriv --reuid="$user" --regid="$user" --clear-groups --bounding-set=-all,+dac_read_search
  --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "${run[@]}")
cd "$directory"
echo ready >&3
trap - EXIT
set +e
setsid "${run[@]}" </dev/null >/run/guest/stdout 2>/run/guest/stderr 3>&- &
command=$!
wait $command
status=$?

# What the command left running would keep the pipes open. What escapes even this is not waited for.
kill -KILL -- -$command 2>/dev/null
for ((i = 0; i < 50; i++)); do
  kill -0 $readers 2>/dev/null || break
  sleep 0.1
done
echo "exit $status" >&3
# The host switches the machine off.
sleep infinity
