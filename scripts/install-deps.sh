#!/usr/bin/env bash
# Installs what the tests, the benchmarks and the demo use and what is not there yet. On Debian and
# its relatives as root by apt-get, without a question and without starting a service; elsewhere it
# says what to install. Nothing is done where nothing is missing.
#
#   scripts/install-deps.sh          everything that `make test`, `make bench` and `make demo` use
#   scripts/install-deps.sh --demo   only what `make demo` uses
#   scripts/install-deps.sh --rdma   what `make test-rdma` and scripts/guest/figures use: libibverbs and its tools, what builds
#                                    a guest kernel
#   scripts/install-deps.sh --bindings   what scripts/bindings.sh uses: headers of libibverbs and librdmacm, libclang
#   scripts/install-deps.sh --suites what `make suites` builds other people's test suites with
#   scripts/install-deps.sh --users  the programs that scripts/users.py tries
#   scripts/install-deps.sh --rdma-qemu   the same, and what makes a guest for QEMU; QEMU itself is unpacked where it is missing
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# tool:package, file:package
demo="cc:gcc make:make python3:python3 curl:curl nginx:nginx wrk:wrk redis-server:redis-server
      redis-benchmark:redis-tools iperf3:iperf3"
tests="redis-cli:redis-tools ab:apache2-utils memcached:memcached haproxy:haproxy
       pgbench:postgresql sshd:openssh-server ssh:openssh-client rsync:rsync vsftpd:vsftpd tinyproxy:tinyproxy
       apache2:apache2-bin git:git node:nodejs javac:default-jdk-headless strace:strace gdb:gdb valgrind:valgrind
       perf:linux-perf objdump:binutils unshare:util-linux ss:iproute2 ps:procps tmux:tmux
       debootstrap:debootstrap"
# Programs that the library does not serve: linked to musl, and 32-bit ones.
[ "$(uname -m)" != x86_64 ] || tests="$tests musl-gcc:musl-tools /usr/include/asm:gcc-multilib"
headers="cc:gcc /usr/include/infiniband/verbs.h:libibverbs-dev /usr/include/rdma/rdma_cma.h:librdmacm-dev"
rdma="$headers make:make python3:python3 unshare:util-linux ip:iproute2 rdma:iproute2 patch:patch xz:xz-utils
      flex:flex bison:bison bc:bc cpio:cpio static-busybox:busybox-static rping:rdmacm-utils
      rstream:rdmacm-utils ib_send_bw:perftest iperf3:iperf3 nginx:nginx curl:curl strace:strace
      ibv_rc_pingpong:ibverbs-utils /etc/libibverbs.d/rxe.driver:ibverbs-providers"
suites="cc:gcc make:make cmake:cmake dpkg-source:dpkg-dev perl:perl tclsh:tcl python3:python3 gdb:gdb ps:procps
        /usr/share/python-wheels:python3-venv /usr/include/openssl/ssl.h:libssl-dev /usr/include/zlib.h:zlib1g-dev"
qemu="modprobe:kmod /usr/include/libelf.h:libelf-dev"

wanted="$demo $tests"
case ${1-} in
"") ;;
--demo) wanted="$demo" ;;
--rdma) wanted="$rdma" ;;
--suites) wanted="$suites" ;;
--rdma-qemu) wanted="$rdma $qemu" ;;
--users) wanted=$("$(dirname "$0")/users.py" --needs) ;;
--bindings) wanted="$headers libclang:libclang-dev" ;;
*) echo "usage: $0 [--bindings | --demo | --rdma | --rdma-qemu | --suites | --users]" >&2; exit 2 ;;
esac

missing_packages() {
    local pair tool
    for pair in $wanted; do
        tool=${pair%%:*}
        case $tool in
        /*) [ -e "$tool" ] ;;
        libclang) compgen -G '/usr/lib*/llvm-*/lib/libclang*.so*' >/dev/null ;;
        # A guest starts from it, without any library.
        static-busybox) tool=$(command -v busybox) && ! ldd "$tool" >/dev/null 2>&1 ;;
        *) command -v "$tool" >/dev/null 2>&1 ;;
        esac || echo "${pair##*:}"
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
    # Nothing is removed for it: where a package stands against one that is there, that is for people to decide.
    # shellcheck disable=SC2086 # a list of words
    quiet_apt install --no-install-recommends --no-remove $packages
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
