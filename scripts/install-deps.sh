#!/usr/bin/env bash
# Installs what the tests, the benchmarks and the demo use and what is not there yet. On Debian and
# its relatives as root by apt-get, without a question and without starting a service; elsewhere it
# says what to install. Nothing is done where nothing is missing.
#
#   scripts/install-deps.sh          everything that `make test`, `make bench` and `make demo` use
#   scripts/install-deps.sh --demo   only what `make demo` uses
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# tool:package
demo="cc:gcc make:make python3:python3 curl:curl nginx:nginx wrk:wrk redis-server:redis-server
      redis-benchmark:redis-tools iperf3:iperf3"
tests="redis-cli:redis-tools ab:apache2-utils memcached:memcached haproxy:haproxy strace:strace
       gdb:gdb valgrind:valgrind objdump:binutils unshare:util-linux ss:iproute2 ps:procps"

wanted="$demo $tests"
case ${1-} in
"") ;;
--demo) wanted=$demo ;;
*) echo "usage: $0 [--demo]" >&2; exit 2 ;;
esac

missing_packages() {
    local pair tool
    for pair in $wanted; do
        tool=${pair%%:*}
        command -v "$tool" >/dev/null 2>&1 || echo "${pair##*:}"
    done
    # A compiler without the C library's headers is not enough.
    [ -e /usr/include/stdio.h ] && [ -e /usr/include/linux/seccomp.h ] || echo libc6-dev
}

packages=$(missing_packages | sort -u | tr '\n' ' ')
if [ -n "${packages// /}" ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "Not installed here: $packages" >&2
        echo "As root on Debian: apt-get install --no-install-recommends $packages" >&2
        echo "On other systems install what provides the same programs." >&2
        exit 1
    fi
    echo "Installing: $packages"
    # Packages of servers would start them; the tests start their own on ports of their own.
    policy=
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    quiet_apt() {
        if ! apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >"$log" 2>&1; then
            cat "$log" >&2
            rm -f "$log"
            return 1
        fi
    }
    quiet_apt update || echo "apt-get update failed; trying with the lists that are there" >&2
    # shellcheck disable=SC2086 # a list of words
    quiet_apt install --no-install-recommends $packages
    rm -f "$log"
    left=$(missing_packages | sort -u | tr '\n' ' ')
    if [ -n "${left// /}" ]; then
        echo "Still missing after the installation: $left" >&2
        exit 1
    fi
fi

if ! command -v cargo >/dev/null 2>&1 && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    echo "Rust is missing: rustc and cargo, 1.88 or later, are needed to build." >&2
    exit 1
fi
