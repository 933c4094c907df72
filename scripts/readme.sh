#!/usr/bin/env bash
# Does what README.md tells a new user to do: `scripts/readme.sh [RELEASE...]`, by default this
# host's release of Debian. What is for the package is done in a root of its own that debootstrap
# makes, as on a new machine, and what is for a clone in this one. Each command of these blocks is
# executed as it stands there, by `sh -e`. Needs root and Debian's archive.
# Last line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin
folder=$(mktemp -d "${TMPDIR:-/tmp}/sluice-readme-XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$folder"' EXIT
releases=("$@")
[ $# -gt 0 ] || releases=("$(. /etc/os-release; echo "$VERSION_CODENAME")")
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
        DEBIAN_FRONTEND=noninteractive sh /root/typed >"$folder/told" 2>&1 </dev/null
    local status=$?
    cat "$folder/told"
    for pattern in "${@:2}"; do grep -q -e "$pattern" "$folder/told" || { echo "not said: $pattern"; return 1; }; done
    return "$status"
}
typed() { echo 'set -e'; for n in "$@"; do block "$n"; done; }
installs() { typed 1 | inside network; }
uses() { typed 2 3 | inside none "$@"; }
# redis-benchmark has measured TCP, and then Sluice.
gains() {
    local rates
    mapfile -t rates < <(tr '\r' '\n' <"$folder/told" | sed -n 's/^GET: \([0-9]*\)[0-9.]* requests per second.*/\1/p')
    echo "${rates[*]}"
    [ ${#rates[@]} = 2 ] && [ "${rates[1]}" -gt "${rates[0]}" ]
}

is "make deb" make -s deb
left() { ! find "$root" -xdev \( -name '*sluice*' -o -name '*libsluice*' \) ! -path '*/dpkg/*' ! -path '*/apt/*' ! -path "$root/root/*" | grep .; }
on_new_machine() { # RELEASE
    root=$folder/$1
    is "$1: a new root" debootstrap --variant=minbase --include=iproute2 "$1" "$root" || return
    install -D -t "$root/root/target" target/sluice_*.deb
    # Nothing may start by itself there.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    is "$1: install" installs &&
        is "$1: use" uses ' shm ' &&
        is "$1: a gain at once" gains &&
        is "$1: remove" inside none <<<'apt-get remove -y sluice' &&
        is "$1: nothing is left" left
    rm -rf --one-file-system "$root"
}
for release in "${releases[@]}"; do on_new_machine "$release"; done

clone() {
    typed 4 >"$folder/block"
    sh -x "$folder/block" 2>&1 | tee "$folder/cloned"
    grep -q 'round trip' "$folder/cloned"
}
is "from source" clone
over
