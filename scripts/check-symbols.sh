#!/usr/bin/env bash
# The library exports exactly the symbols of src/preload/symbols.txt, and needs libc, libgcc_s and the
# loader alone. After a hook was added or taken away: `check-symbols.sh --write`. Last line: N passed,
# N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
lib=target/release/libsluice.so
list=src/preload/symbols.txt
. scripts/lib/count.sh

exported=$(nm -D --defined-only "$lib" | awk '{print $NF}' | LC_ALL=C sort)
[ "${1-}" = --write ] && printf '%s\n' "$exported" >"$list"
[ -n "$exported" ]; hold $? "nm shows no symbol at all"
missing=$(LC_ALL=C comm -23 "$list" <(printf '%s\n' "$exported") | tr '\n' ' ')
[ -z "$missing" ]; hold $? "does not export: $missing"
extra=$(LC_ALL=C comm -13 "$list" <(printf '%s\n' "$exported") | tr '\n' ' ')
[ -z "$extra" ]; hold $? "exports what is not in $list: $extra"

case $(uname -m) in
aarch64) loader=ld-linux-aarch64.so.1 ;;
*) loader=ld-linux-x86-64.so.2 ;;
esac
needed=$(objdump -p "$lib" | awk '/NEEDED/{print $2}' | LC_ALL=C sort | tr '\n' ' ')
[ "$needed" = "$loader libc.so.6 libgcc_s.so.1 " ]; hold $? "needs: $needed"

over
