#!/usr/bin/env bash
# What `make install` puts somewhere works there, `make uninstall` leaves nothing of it, and the archive of `make tarball` works where it is
# unpacked. Everything is in a folder of its own, which goes at the end. Last line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
folder=$(mktemp -d "${TMPDIR:-/tmp}/sluice-installed-XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
. scripts/lib/count.sh

# The command that lies in a folder, and what belongs to it.
works() {
    local root=$1 tool=$1/bin/sluice
    [[ "$("$tool" run -- sh -c 'echo "$LD_PRELOAD"')" = */.."$root/lib/libsluice.so" ]] || return 1
    # Its status tells of RDMA, too.
    grep -qx 'shared memory: usable' <<<"$("$tool" doctor)" || return 1
    "$tool" run --require --upgrade eager -- python3 -c '
import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
for _ in range(1000):
    one.sendall(bytes(1000))
    assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
' || return 1
    local page
    for page in sluice.1 sluice-run.1 sluice-stat.1 sluice-top.1 sluice-bench.1 sluice-doctor.1; do
        grep -q '^\.SH NAME' "$root/share/man/man1/$page" || return 1
    done
    # Pages of what users are not to call.
    [ ! -e "$root/share/man/man1/sluice-end.1" ] && [ ! -e "$root/share/man/man1/sluice-trial.1" ] || return 1
    grep -q SLUICE_UPGRADE "$root/share/man/man7/libsluice.7" || return 1
    bash -n "$root/share/bash-completion/completions/sluice"
}

nothing_left() {
    local left
    left=$(find "$1" ! -type d)
    [ -z "$left" ] || { echo "$left"; return 1; }
}

prefix=$folder/prefix
is "make install" make -s install PREFIX="$prefix"
is "what is installed" works "$prefix"
is "make uninstall" make -s uninstall PREFIX="$prefix"
is "nothing is left" nothing_left "$prefix"
is "make tarball" make -s tarball
archive=$(tail -n 1 "$folder/said")
is "unpacked" tar -C "$folder" -xzf "$archive"
is "what is unpacked" works "$folder/$(basename "$archive" .tar.gz)"
over
