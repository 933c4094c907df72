#!/usr/bin/env bash
# Makes a Debian package of what target/portable/release has: `scripts/package.sh VERSION`. `make
# deb` builds that first. Prints the file's path. Needs dpkg-deb and strip.
set -euo pipefail
version=${1:?the version}
cd "$(dirname "$0")/.."
arch=$(dpkg --print-architecture)
root=$PWD/target/package
rm -rf "$root"
mkdir -p "$root/DEBIAN"

# The loader of musl does not look here: docs/decisions/021-how-the-library-is-preloaded.md.
folder=/usr/lib/$(uname -m)-linux-gnu
make -s install-files BUILT=target/portable/release PREFIX=/usr LIBDIR="$folder" DESTDIR="$root"
chmod 644 "$root$folder/libsluice.so"
strip --strip-debug "$root$folder/libsluice.so" "$root/usr/bin/sluice"
scripts/docs-tree.sh "$root/usr/share/doc/sluice"
{
    echo 'Files: *'
    sed -n 's/^Copyright (c) /Copyright: /p' LICENSE-MIT
    echo 'License: MIT or Apache-2.0; the texts are LICENSE-MIT and LICENSE-APACHE in this folder.'
} >"$root/usr/share/doc/sluice/copyright"

# What the files need is what scripts/portable.sh lets through.
cat >"$root/DEBIAN/control" <<CONTROL
Package: sluice
Version: $version
Architecture: $arch
Maintainer: The Sluice developers
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= 2.28), libgcc-s1 | libgcc1
Suggests: libibverbs1, librdmacm1, ibverbs-providers
Section: net
Priority: optional
Description: moves TCP connections of unmodified programs onto shared memory and RDMA
 Preloaded into two unmodified programs, libsluice.so moves the TCP connections
 between them onto shared memory, or, between hosts with RDMA devices, onto
 queue pairs. It needs no daemon, no privilege and no configuration.
CONTROL
package=target/sluice_${version}_$arch.deb
dpkg-deb --build --root-owner-group "$root" "$package" >/dev/null
echo "$package"
