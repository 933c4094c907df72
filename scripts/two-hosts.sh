#!/usr/bin/env bash
# Measures what Sluice does between this host and another one, beside TCP and what else is there. Needs ssh
# to the other host without a question, and there as here a POSIX shell; programs that one of the hosts
# lacks are left out. Nothing is installed: the library and the benchmarks go to a temporary directory.
#
#   scripts/two-hosts.sh [-a ADDRESS] [-k CASE] [-o DIR] [-r ROUNDS] [-s SECONDS] [-l LIBRARY] [USER@]PEER
#
#   -a  the peer's address on the RDMA network (that of the ssh connection)
#   -k  only cases with this text in their name
#   -o  where results.tsv and index.html go (two-hosts)
#   -r  rounds; medians are of so many (5)
#   -s  seconds of one run (2)
#   -l  the library (target/release/libsluice.so)
#
# SSH is how the peer is reached ("ssh"); variables SLUICE_* hold for both hosts. Servers run on the peer.
# Variants: tcp; sluice; rsockets, if librspreload.so is there; smc, if smc_run is; for nginx also
# sluice with SLUICE_SENDFILE=copy, =register and =pages, and for st with SLUICE_DIRECT=auto. In each round every
# variant of a case runs once, so a ratio is of two runs side by side. What a variant of Sluice did not
# move by a link shows as `by link`. Exit status 1 if a case of Sluice failed.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; }
address='' only='' out=two-hosts rounds=5 secs=2 lib=target/release/libsluice.so
while getopts a:k:o:r:s:l:h option; do
    case $option in
    a) address=$OPTARG ;; k) only=$OPTARG ;; o) out=$OPTARG ;; r) rounds=$OPTARG ;; s) secs=$OPTARG ;;
    l) lib=$OPTARG ;; h) usage; exit 0 ;; *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 1 ] || { usage >&2; exit 2; }
peer=$1
die() { echo "two-hosts: $*" >&2; exit 2; }
[ -f "$lib" ] || die "$lib is missing: make build"
make -s -C benches >/dev/null

here=$(mktemp -d)
remote() { ${SSH:-ssh} -o BatchMode=yes -o ControlMaster=auto -o ControlPath="$here/ssh" -o ControlPersist=60 "$peer" "$@"; }
there=$(remote mktemp -d) || die "no ssh to $peer without a question"
cleanup() {
    # Servers that still run were started by us, and their numbers are in this directory.
    remote "cd $there && for f in *.pid; do [ ! -f \$f ] || kill \$(cat \$f) 2>/dev/null; done; rm -rf $there" || true
    ${SSH:-ssh} -o ControlPath="$here/ssh" -O exit "$peer" 2>/dev/null || true
    rm -rf "$here"
}
trap cleanup EXIT
tar -cf - -C "$(dirname "$lib")" "$(basename "$lib")" -C "$PWD/benches/bin" pp st | remote "tar -xf - -C $there"
cp "$lib" benches/bin/pp benches/bin/st "$here"
library=$(basename "$lib")

if [ -z "$address" ]; then
    name=${peer#*@}
    address=$(remote 'echo $SSH_CONNECTION' | awk '{ print $3 }')
    [ -n "$address" ] || die "what is the address of $name? say -a"
fi
from=$(ip route get "$address" | sed -n 's/.* src \([^ ]*\).*/\1/p')
host=$address
case $address in *:*) host="[$address]" ;; esac

have() { command -v "$1" >/dev/null 2>&1; }
there_is() { remote "PATH=\$PATH:/usr/sbin:/sbin command -v $1" >/dev/null 2>&1; }
both() { have "$1" && there_is "$1"; }
rs=$(ls /usr/lib*/rsocket/librspreload.so* /usr/lib*/*/rsocket/librspreload.so* 2>/dev/null | head -1 || true)
[ -z "$rs" ] || remote "[ -f $rs ]" || rs=''
settings=$(env | sed -n 's/^\(SLUICE_[A-Z_]*=[^ ]*\)$/\1/p' | tr '\n' ' ')

# What stands before a program of this variant, in the directory of its host.
words() {
    case $2 in
    tcp) ;;
    rsockets) echo "env LD_PRELOAD=$rs" ;;
    smc) echo smc_run ;;
    sluice*)
        local more=''
        case $2 in *-*) more="${2#sluice-}" ;; esac
        echo "env LD_PRELOAD=$1/$library SLUICE_REPORT=$1/report $settings $more" ;;
    esac
}

# Starts a server on the peer: its variant, a name, a word that its first line begins with, or - if it prints
# none; then its words. What the line says goes to `said`.
serve() {
    local variant=$1 name=$2 first=$3
    shift 3
    : >"$here/$name.out"
    remote "cd $there && export PATH=\$PATH:/usr/sbin:/sbin && echo \$\$ >$name.pid && exec $(words "$there" "$variant") $*" \
        </dev/null >"$here/$name.out" 2>"$here/$name.err" &
    server=$!
    said=''
    [ "$first" != - ] || return 0
    local n
    for n in $(seq 100); do
        said=$(sed -n "s/^$first //p" "$here/$name.out" | head -1)
        [ -z "$said" ] || return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    return 1
}
# Until it listens at this port.
listens() {
    local n
    for n in $(seq 100); do
        ! (exec 3<>"/dev/tcp/$address/$1") 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}
stop() {
    remote "cd $there && [ ! -f $1.pid ] || kill \$(cat $1.pid) 2>/dev/null; rm -f $1.pid" || true
    wait $server 2>/dev/null || true
}
client() {
    local variant=$1
    shift
    # shellcheck disable=SC2046
    (cd "$here" && timeout $((15 + 3 * secs)) $(words "$here" "$variant") "$@")
}
field() { tr ' ' '\n' | sed -n "s/^$1=//p"; }

# Each case prints its rate; more is better.
pp() {
    serve "$1" pp port ./pp server "$address" 64 || return 1
    client "$1" ./pp client "$address" "$said" 64 "$secs" 0.5 >"$here/line" || return 1
    wait $server || return 1
    awk -v o="$(field ops <"$here/line")" -v s="$(field secs <"$here/line")" 'BEGIN { print o / s }'
}
st() {
    serve "$1" st port ./st server "$address" "$2" 0.5 || return 1
    client "$1" ./st client "$address" "$said" "$2" $((secs + 1)) >/dev/null || return 1
    wait $server || return 1
    awk -v b="$(field bytes <"$here/st.out")" -v s="$(field secs <"$here/st.out")" 'BEGIN { print b / s / 1e6 }'
}
redis() {
    serve "$1" redis - redis-server --port 6399 --bind "$address" --save "''" --protected-mode no
    listens 6399 || { stop redis; return 1; }
    client "$1" redis-benchmark -h "$address" -p 6399 -c 50 -n $((secs * 50000)) -t get --csv >"$here/line" || { stop redis; return 1; }
    stop redis
    tail -1 "$here/line" | cut -d, -f2 | tr -d '"'
}
web() {
    remote "cd $there && mkdir -p www && [ -f www/mib ] || head -c 1048576 /dev/urandom >$there/www/mib; cat >$there/nginx.conf" <<C
daemon off; master_process off; pid $there/nginx.own; error_log $there/nginx.log;
events {}
http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; client_body_temp_path $there/t1;
  proxy_temp_path $there/t2; fastcgi_temp_path $there/t3; uwsgi_temp_path $there/t4; scgi_temp_path $there/t5;
  server { listen $host:8399; root $there/www; } }
C
    serve "$1" nginx - nginx -c "$there/nginx.conf" -p "$there"
    listens 8399 || { stop nginx; return 1; }
    case $2 in
    wrk) client "$1" wrk -t 1 -c 16 -d "${secs}s" "http://$host:8399/mib" >"$here/line" || { stop nginx; return 1; }
        ! grep -q 'Non-2xx\|Socket errors' "$here/line" || { stop nginx; return 1; }
        sed -n 's/^Requests.sec: *//p' "$here/line" ;;
    curl) client "$1" curl -sS -o /dev/null -w '%{speed_download}\n' "http://$host:8399/mib?[1-400]" >"$here/line" || { stop nginx; return 1; }
        awk '{ n++; t += 1048576 / $1 } END { print n * 1.048576 / t }' "$here/line" ;;
    esac
    stop nginx
}
iperf() {
    serve "$1" iperf - iperf3 -s -1 -B "$address" -p 5399
    sleep 0.5
    client "$1" iperf3 -c "$address" -p 5399 -t "$secs" -J >"$here/line" || { stop iperf; return 1; }
    stop iperf
    python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 8e6)' <"$here/line"
}
raw() {
    serve tcp "$2" - "$2" -F -s 65536 -n $((secs * 2000)) --report_gbits
    sleep 1
    client tcp "$2" -F -s 65536 -n $((secs * 2000)) --report_gbits "$address" >"$here/line" 2>&1 || { stop "$2"; return 1; }
    stop "$2"
    awk '$1 == 65536 { print $4 * 1000 / 8 }' "$here/line"
}

mkdir -p "$out"
tsv=$out/results.tsv
printf 'case\tvariant\tround\trate\tby link\n' >"$tsv"
failed=0
share() {
    [ -f "$here/report" ] || { echo -; return; }
    tr ' ' '\n' <"$here/report" | awk -F= '/^[rt]x_(tcp|direct|indirect|file|pages)=/ { all += $2; if ($1 !~ /tcp/) link += $2 }
        END { if (all) printf "%.2f\n", link / all; else print "-" }'
}
# A case: its name, what its rate counts, its variants, and how it is run.
measure() {
    local name=$1 unit=$2 variants=$3 round variant rate
    shift 3
    case $name in *"$only"*) ;; *) return 0 ;; esac
    for round in $(seq "$rounds"); do
        for variant in $variants; do
            rm -f "$here/report"
            if rate=$("$1" "$variant" "${@:2}") && [ -n "$rate" ]; then
                printf '%s (%s)\t%s\t%s\t%s\t%s\n' "$name" "$unit" "$variant" "$round" "$rate" "$(share)" >>"$tsv"
            else
                echo "two-hosts: $name by $variant failed: $(cat "$here"/*.err 2>/dev/null | tail -1)" >&2
                case $variant in sluice*) failed=1 ;; esac
            fi
            rm -f "$here"/*.err
        done
    done
}

others=''
[ -z "$rs" ] || others="$others rsockets"
! both smc_run || others="$others smc"
for tool in ib_send_bw ib_write_bw; do
    ! both $tool || measure "$tool 64 KiB" MB/s raw raw $tool
done
measure 'pp 64' round-trips/s "tcp sluice$others" pp
for size in 64 65536 1048576; do
    measure "st $size" MB/s "tcp sluice sluice-SLUICE_DIRECT=auto$others" st $size
done
! { have redis-benchmark && there_is redis-server; } || measure 'redis get c50' /s 'tcp sluice' redis
ways='tcp sluice sluice-SLUICE_SENDFILE=copy sluice-SLUICE_SENDFILE=register sluice-SLUICE_SENDFILE=pages'
! { have curl && there_is nginx; } || measure 'nginx 1 MiB, curl' MB/s "$ways" web curl
! { have wrk && there_is nginx; } || measure 'nginx 1 MiB, wrk c16' /s "$ways" web wrk
! both iperf3 || measure 'iperf3 P1' MB/s 'tcp sluice' iperf

# The table: medians, and the median of the ratios to TCP's run of the same round.
table() {
    awk -F'\t' '
    function median(list,   a, n, i, j, t) {
        n = split(list, a, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    NR > 1 {
        key = $1 "\t" $2
        if (!(key in rates)) order[++count] = key
        rates[key] = rates[key] " " $4
        if ($2 == "tcp") tcp[$1, $3] = $4
        else if (($1, $3) in tcp) ratios[key] = ratios[key] " " $4 / tcp[$1, $3]
        if ($5 != "-") shares[key] = shares[key] " " $5
    }
    END {
        for (i = 1; i <= count; i++) {
            key = order[i]
            r = key in ratios ? sprintf("%.2f", median(ratios[key])) : "-"
            s = key in shares ? sprintf("%.0f %%", 100 * median(shares[key])) : "-"
            printf "%s\t%.1f\t%s\t%s\n", key, median(rates[key]), r, s
        }
    }' "$tsv"
}
rows=$(table)
{ printf 'case\tvariant\trate\tto tcp\tby link\n'; echo "$rows"; } | column -t -s "$(printf '\t')"
{
    echo '<!doctype html><meta charset="utf-8"><title>Sluice between two hosts</title>'
    echo '<style>body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}tr:nth-child(even){background:#f3f3f3}</style>'
    printf '<h1>Sluice between two hosts</h1><p>%s, %s to %s; %s rounds of %s s; Linux %s, there %s.</p>\n' \
        "$(date -u +%F)" "$from" "$address" "$rounds" "$secs" "$(uname -r)" "$(remote uname -r)"
    echo '<table><tr><th>case<th>variant<th>rate<th>to TCP<th>by link'
    echo "$rows" | sed 's/&/\&amp;/g; s/</\&lt;/g; s/^/<tr><td>/; s/\t/<td>/g'
    echo '</table>'
} >"$out/index.html"
echo "results: $tsv, $out/index.html"
exit $failed
