#!/usr/bin/env bash
# Says in one line what is missing on this system to build Sluice, and what installs it. Nothing is
# said, and the status is 0, where nothing is missing. `make build` and its like begin with it.
#
#   scripts/needs.sh            for `make build` and `make install`
#   scripts/needs.sh --package  for `make deb`; --archive for `make tarball`
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

has() { command -v "$1" >/dev/null 2>&1; }
compiles() { echo '#include <stdio.h>
int main(void) { return puts(""); }' | "${CC:-cc}" -x c -o /dev/null - 2>/dev/null; }
rust_is_new() {
    local here
    here=$("$cargo" -vV 2>/dev/null | sed -n 's/^release: //p') || return 1
    [ -n "$here" ] && [ "$(printf '%s\n' "$rust" "$here" | sort -V | head -n 1)" = "$rust" ]
}

# The C library's headers have another name in each family of systems.
for manager in apt-get dnf zypper pacman apk none; do has "$manager" && break; done
case $manager in
apt-get) install="apt-get install -y" c="gcc libc6-dev" ;;
dnf | zypper) install="$manager install -y" c="gcc glibc-devel" ;;
pacman) install="pacman -S --noconfirm" c="gcc" ;;
apk) echo "Sluice is built on systems with glibc; this one has musl." >&2; exit 1 ;;
*) install= c="gcc" ;;
esac

missing=() packages=()
need() { # WHAT PACKAGES TEST...
    "${@:3}" || { missing+=("$1"); packages+=($2); }
}
need "a C compiler with the C library's headers" "$c" compiles
case ${1-} in
"") ;;
--package | --archive)
    need "ar and objdump" binutils has objdump
    if [ "$1" = --package ]; then need dpkg-deb dpkg has dpkg-deb; else need gzip gzip has gzip; fi
    ;;
*) echo "usage: $0 [--package | --archive]" >&2; exit 2 ;;
esac
how=
[ ${#packages[@]} = 0 ] || [ -z "$install" ] || how="as root: $install ${packages[*]}"
if ! rust_is_new; then
    missing+=("Rust $rust or later")
    how+=${how:+; }"Rust: https://rustup.rs"
fi
[ ${#missing[@]} = 0 ] && exit
printf -v all '%s, ' "${missing[@]}"
echo "Missing: ${all%, }${how:+ ($how)}" >&2
exit 1
