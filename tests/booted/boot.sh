#!/bin/bash
# Boots this system's systemd as process 1 of its own namespaces, again for each line of stdin: boot.sh FOLDER CGROUP.
# Its root is a copy of ours in memory, so that what it writes, installs and mounts is gone with it.
set -e
folder=$1 cgroup=$2 root=$1/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$folder"
mkdir -p "$root" "$folder/written" "$folder/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/written,workdir=$folder/work" "$root"
# Only what every boot needs is started. Python and the checkout may be in folders of which others may list nothing.
rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/user/*.wants
for path in "${@:3}"; do
    while [ "$path" != / ]; do chmod a+x "$root$path"; path=$(dirname "$path"); done
done
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
useradd --root "$root" --create-home ann
umount "$root"

while read -r; do
    echo boots
    setpriv --pdeathsig KILL unshare --mount --pid --uts --ipc --net --fork --kill-child bash -es "$folder" "$cgroup" 2>/dev/null <<'BOOT' || true
root=$1/root
echo 0 > "$2/cgroup.procs"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/written,workdir=$1/work" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
for place in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $place; done
chmod 1777 tmp
for device in null zero full random urandom tty; do cp -a /dev/$device dev; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mkdir run/old
pivot_root . run/old
umount -l /run/old
exec unshare --cgroup bash -c "mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec env -i container=other PATH='$PATH' /lib/systemd/systemd --system" </dev/null >/dev/null 2>&1
BOOT
    echo down
done
