#!/usr/bin/env bash
# From a checkout to proof: installs what is missing, builds, serves files by nginx to curl, both
# unmodified and under Sluice, compares checksums, shows with `sluice stat` that the connections left
# TCP, and measures real programs with and without. Status 0 only if all of that held.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

say() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n== %s\n' "$*"; fi; }
fail() { echo "FAILED: $*" >&2; exit 1; }

say "1. What is needed"
scripts/install-deps.sh --demo
echo "all there"

say "2. Build"
cargo build --release --workspace
make -s -C benches
sluice=$PWD/target/release/sluice

place=$(mktemp -d /tmp/sluice-demo-XXXXXX)
chmod 755 "$place"
nginx_pid= curl_pid=
tidy_up() {
    [ -z "$curl_pid" ] || kill "$curl_pid" 2>/dev/null || true
    if [ -n "$nginx_pid" ] && kill -QUIT "$nginx_pid" 2>/dev/null; then wait "$nginx_pid" || true; fi
    rm -rf "$place"
}
trap tidy_up EXIT

say "3. nginx and curl under Sluice"
mkdir "$place/www"
cp LICENSE-APACHE Cargo.lock target/release/libsluice.so "$place/www/"
head -c 268435456 /dev/urandom >"$place/www/256MiB"
chmod 644 "$place"/www/*
port=$(python3 -c 'import sys; sys.path.insert(0, "scripts/lib"); import common; print(common.free_port())')
user=
[ "$(id -u)" -ne 0 ] || user="user root;"
cat >"$place/nginx.conf" <<CONF
daemon off;
$user
worker_processes 1;
pid $place/nginx.pid;
error_log $place/error.log warn;
events { worker_connections 256; }
http {
    access_log off;
    sendfile on;
    client_body_temp_path $place/t1; proxy_temp_path $place/t2; fastcgi_temp_path $place/t3;
    uwsgi_temp_path $place/t4; scgi_temp_path $place/t5;
    server { listen 127.0.0.1:$port; root $place/www; }
}
CONF
# `sluice run` becomes the program: this is nginx's own process id.
"$sluice" run -- nginx -e "$place/error.log" -c "$place/nginx.conf" -p "$place" &
nginx_pid=$!
for _ in $(seq 100); do
    if curl -s -o /dev/null "http://127.0.0.1:$port/"; then break; fi
    kill -0 "$nginx_pid" 2>/dev/null || fail "nginx did not start: $(cat "$place/error.log" 2>/dev/null)"
    sleep 0.1
done

for name in LICENSE-APACHE Cargo.lock libsluice.so 256MiB; do
    "$sluice" run -e SLUICE_REPORT="$place/report-$name" -- \
        curl -sS --fail -o "$place/got" "http://127.0.0.1:$port/$name"
    sent=$(sha256sum <"$place/www/$name") got=$(sha256sum <"$place/got")
    [ "$sent" = "$got" ] || fail "$name arrived changed"
    printf '%-15s %11s bytes  sha256 %s...  the same\n' "$name" "$(stat -c %s "$place/got")" "${got:0:16}"
done
rm -f "$place/got"

say "4. Which way they went"
# One connection, many times the same file: lives long enough to be looked at.
urls=()
for i in $(seq 60); do urls+=(-o /dev/null "http://127.0.0.1:$port/256MiB?$i"); done
"$sluice" run -- curl -sS --fail "${urls[@]}" &
curl_pid=$!
seen=
for _ in $(seq 50); do
    if "$sluice" stat --json "$curl_pid" >"$place/stat.json" 2>/dev/null &&
        python3 - "$place/stat.json" <<'CHECK'
import json, sys
processes = json.load(open(sys.argv[1]))["processes"]
flows = [c["rx"] for p in processes for c in p["connections"] if c["transport"] == "shm"]
sys.exit(not any(f["direct"] + f["indirect"] + f["file"] > 1 << 20 for f in flows))
CHECK
    then seen=yes; break; fi
    sleep 0.1
done
"$sluice" stat "$curl_pid" || true
worker=$(cat "/proc/$nginx_pid/task/$nginx_pid/children")
for pid in $worker; do "$sluice" stat "$pid" || true; done
kill "$curl_pid" 2>/dev/null || true
wait "$curl_pid" 2>/dev/null || true
curl_pid=
[ -n "$seen" ] || fail "curl's connection stayed on TCP"
[ -s "$place/report-256MiB" ] || fail "curl reported no connection"
python3 - "$place/report-256MiB" <<'CHECK' || fail "the 256 MiB went over TCP"
import sys
sys.path.insert(0, "scripts/lib")
import common
counters = common.read_report(sys.argv[1])
print(f"\nThe 256 MiB file: {counters}")
sys.exit(counters.share() < 0.95)
CHECK

kill -QUIT "$nginx_pid"
wait "$nginx_pid" || fail "nginx ended with status $?"
nginx_pid=

say "5. How fast"
scripts/compare.sh --quick
