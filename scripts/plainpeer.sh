#!/usr/bin/env bash
# A plain client against a preloaded server and the reverse, under strace: no extra byte in the
# stream, no added wait, descriptor or thread. Last line: N passed, N failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/lib/plainpeer.py" "$@"
