#!/usr/bin/env bash
# The library needs libc, libgcc_s and the loader alone; it exports no Rust symbol, and what it
# exports is there for programs to find. Last line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
lib=target/release/libsluice.so
passed=0 failed=0
hold() { if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED  $2"; fi; }

needed=$(objdump -p "$lib" | awk '/NEEDED/{print $2}')
[ -n "$needed" ]; hold $? "objdump shows no NEEDED at all"
others=$(grep -vE '^(libc\.so|libgcc_s\.so|ld-linux)' <<<"$needed" | tr '\n' ' ')
[ -z "$others" ]; hold $? "the library needs more than libc, libgcc_s and the loader: $others"

exported=$(objdump -T "$lib" | awk '$4 != "*UND*" && /\.text/ {print $NF}')
for name in connect accept4 send recv read write close epoll_wait poll; do
    grep -qx "$name" <<<"$exported"; hold $? "does not export $name"
done
mangled=$(grep -E '^(_R|_ZN)|rust_' <<<"$exported" | head -3 | tr '\n' ' ')
[ -z "$mangled" ]; hold $? "exports Rust symbols: $mangled"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
