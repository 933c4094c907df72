#!/usr/bin/env bash
# Does what README.md tells a new user to do: what is for the package in a root of its own that debootstrap makes, as on a new machine,
# and what is for a clone in this one. Each command of these blocks is executed as it stands there. Needs root and Debian's archive.
# Last line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin
folder=$(mktemp -d "${TMPDIR:-/tmp}/sluice-readme-XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$folder"' EXIT
root=$folder/root
. scripts/lib/count.sh

# The Nth block of commands.
block() { awk -v n="$1" '/^```sh$/ {on = ++at == n; next} /^```$/ {on = 0} on' README.md; }

# In the new root, in namespaces that end with it: commands as they are typed, with this host's network or with none. What they say is
# to have these patterns.
inside() { # NETWORK PATTERN...
    local flags=(--mount --pid --fork --kill-child --ipc --uts) first=: pattern
    [ "$1" = network ] || flags+=(--net) first='ip link set lo up'
    {
        echo "mount -t proc p /proc; mount -t sysfs s /sys; mount -t tmpfs t /dev/shm; $first; cd /root; set -x"
        cat
    } >"$root/root/typed"
    unshare "${flags[@]}" chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive bash /root/typed >"$folder/told" 2>&1 </dev/null
    local status=$?
    cat "$folder/told"
    for pattern in "${@:2}"; do grep -q -e "$pattern" "$folder/told" || { echo "not said: $pattern"; return 1; }; done
    return "$status"
}
install() { block 1 | head -n 1 | inside network; }
use() { { block 1 | tail -n +2; block 2; } | inside none "$@"; }

tools=target/tools
PATH=$PATH:$PWD/$tools/bin
cargo deb --version >/dev/null 2>&1 || is "cargo-deb" cargo install -q --locked --root "$tools" cargo-deb
is "make deb" make -s deb
is "a new root" debootstrap --variant=minbase --include=iproute2 "$(. /etc/os-release; echo "$VERSION_CODENAME")" "$root"
[ "$failed" = 0 ] || over
cp target/sluice_*.deb "$root/root/"
# Nothing may start by itself there.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
is "install" install
is "use and remove" use 'shared memory: usable' '^the same$' '127.0.0.1:80.* shm' 'left TCP for shared memory' 'round trip' 'Removing sluice'
is "a report" grep -q '<svg' "$root/tmp/report.html"
left() { ! find "$root" -xdev \( -name '*sluice*' -o -name '*libsluice*' \) ! -path '*/dpkg/*' ! -path '*/apt/*' ! -path "$root/root/*" | grep .; }
is "nothing is left" left

clone() {
    block 3 | sed "s|/tmp/|$folder/|g" >"$folder/block"
    bash -mx "$folder/block" 2>&1 | tee "$folder/cloned"
    grep -qx 'the same' "$folder/cloned"
}
is "from source" clone
over
