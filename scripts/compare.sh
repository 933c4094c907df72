#!/usr/bin/env bash
# TCP against Sluice with real programs (nginx with curl and wrk, redis, iperf3, a C ping-pong):
# alternating runs, medians, ratios, a table at the end, and what `sluice stat` says of the
# connections. `--help` lists the options. Status 1 if something was not accelerated.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/lib/compare.py" "$@"
