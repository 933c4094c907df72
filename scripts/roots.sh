#!/usr/bin/env bash
# The Debian package, made and used on new systems: `scripts/roots.sh [RELEASE...]`, by default
# Debian 11, 12 and 13. Each is a root of its own that debootstrap makes, of Debian's minimum alone.
#
# In bookworm and trixie `make deb` first says what is missing, the command that it names installs
# that, and then it makes the package; Rust comes from this host. Each package is then installed in
# each root. There nginx serves a file to curl under `sluice run`, over a link, as `sluice stat`
# shows.
#
# Needs root and Debian's archive. What debootstrap fetches is kept in
# ${XDG_CACHE_HOME:-~/.cache}/sluice-roots, which may be deleted at any time. Mounts are in
# namespaces that end with their commands, and the roots go at the end, however that comes. Last
# line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice-roots
releases=("$@")
[ $# -gt 0 ] || releases=(bullseye bookworm trixie)
folder=$(mktemp -d "${TMPDIR:-/tmp}/sluice-roots-XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$folder"' EXIT
trap 'exit 1' INT TERM HUP
. scripts/lib/count.sh

# A root of this release, of what is in the cache.
new_root() {
    local kept=$cache/$1.tar root=$folder/$1
    mkdir -p "$cache"
    if [ ! -s "$kept" ]; then
        debootstrap --variant=minbase --make-tarball="$kept.new" "$1" "$folder/fetched" || return 1
        mv "$kept.new" "$kept"
    fi
    debootstrap --variant=minbase --unpack-tarball="$kept" "$1" "$root" || return 1
    # No package starts a server there.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    mkdir -p "$root/opt/rust" "$root/opt/cargo" "$root/opt/sluice"
}

# The commands of stdin in a root, with this host's Rust: `inside RELEASE [net]`, with this host's
# network or none.
inside() {
    local root=$folder/$1 flags=(--mount --pid --fork --kill-child --ipc --uts)
    [ "${2-}" = net ] || flags+=(--net)
    cat >"$root/root/typed"
    export root rust=$sysroot crates=${CARGO_HOME:-$HOME/.cargo}
    unshare "${flags[@]}" bash -ec '
        mount --bind -o ro "$rust" "$root/opt/rust"
        mount --bind -o ro "$crates" "$root/opt/cargo"
        mount -t proc p "$root/proc"
        mount -t sysfs s "$root/sys"
        mount -t tmpfs t "$root/dev/shm"
        exec chroot "$root" /usr/bin/env -i HOME=/root DEBIAN_FRONTEND=noninteractive \
            CARGO_HOME=/opt/cargo CARGO_NET_OFFLINE=true \
            PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -e /root/typed' </dev/null
}

# `make deb` as on a new machine.
build() {
    git ls-files -z --cached --others --exclude-standard | tar -c --null -T - |
        tar -x -C "$folder/$1/opt/sluice" || return 1
    inside "$1" net <<'TYPED' || return 1
cd /opt/sluice
apt-get -q update
apt-get install -y -q --no-install-recommends make
if make -s deb 2>missing; then echo 'nothing was missing' >&2; exit 1; fi
cat missing
[ "$(grep -c ^Missing missing)" = 1 ]
how=$(sed -n 's/^Missing: .*(as root: \(.*\))$/\1/p' missing)
$how
make -s deb
TYPED
    mkdir -p "$folder/made-$1"
    cp "$folder/$1"/opt/sluice/target/sluice_*.deb "$folder/made-$1/"
}

install() { # RELEASE PACKAGE
    rm -f "$folder/$1"/root/*.deb
    cp "$2" "$folder/$1/root/"
    inside "$1" net <<'TYPED'
apt-get -q update
apt-get install -y -q --no-install-recommends /root/*.deb nginx curl iproute2
TYPED
}

use() {
    inside "$1" <<'TYPED'
ip link set lo up
ldd --version | head -n 1
[ "$(sluice run sh -c 'echo "$LD_PRELOAD"')" = libsluice.so ]
sluice run sh -c 'grep -q libsluice.so /proc/self/maps'
# By its path, too, as the archive has it.
cp /usr/bin/sluice /usr/lib/*/libsluice.so /tmp/
/tmp/sluice run sh -c 'grep -q /tmp/libsluice.so /proc/self/maps'
rm /tmp/*sluice*
head -c 50000000 /dev/urandom >/var/www/html/file
sluice run nginx
sluice run curl -sS --retry-connrefused --retry 5 -o /tmp/got http://127.0.0.1/file
cmp /tmp/got /var/www/html/file
sluice run curl -sS -o /dev/null 'http://127.0.0.1/file?[1-2000]' &
for i in $(seq 100); do
    sluice stat nginx >/tmp/seen
    if grep -q '127.0.0.1:80.* shm' /tmp/seen; then break; fi
    sleep 0.1
done
cat /tmp/seen
grep -q '127.0.0.1:80.* shm' /tmp/seen
kill $!
nginx -s stop
[ -s /usr/share/doc/sluice/docs/limitations.md ]
apt-get remove -y -q sluice
! find / -xdev -name '*sluice*' ! -path '/opt/*' ! -path '/root/*' ! -path '/var/*' | grep .
TYPED
}

sysroot=$(rustc --print sysroot) || exit 1
for release in "${releases[@]}"; do
    is "$release: a new root" new_root "$release" || continue
    case $release in
    bookworm | trixie) is "$release: make deb" build "$release" ;;
    esac
done
for release in "${releases[@]}"; do
    for package in "$folder"/made-*/*.deb; do
        made=${package%/*} made=${made##*made-}
        is "$release: installation, made in $made" install "$release" "$package" &&
            is "$release: use, made in $made" use "$release"
    done
done
over
