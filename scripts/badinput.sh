#!/usr/bin/env bash
# Garbage in SLUICE_*, no descriptors left, memory files refused, /proc not mounted, filters that
# kill: programs work all the same, on TCP where it must be, and `sluice` knows why. An argument
# picks the tests whose name contains it. Last line: N passed, N failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/lib/badinput.py" "$@"
