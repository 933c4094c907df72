#!/usr/bin/env bash
# Runs tests under what finds undefined behaviour, races and wild accesses. ThreadSanitizer needs the sources of the standard library
# (`rustup component add rust-src`), which is built anew with it, and Miri a nightly compiler that has it (`rustup toolchain install
# nightly --component miri --component rust-src`). What is missing is said, and left out.
#
#   scripts/sanitize.sh [thread|address|miri]...
#
# The last line is `N passed, N failed`, a run each.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
host=$(rustc -vV | sed -n 's/^host: //p')
passed=0 failed=0

# A name, and what to run.
attempt() {
    local name=$1
    shift
    echo "--- $name"
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "FAILED  $name: status $?"
        failed=$((failed + 1))
    fi
}

# A sanitizer, and the arguments of cargo test.
sanitized() {
    local sanitizer=$1
    shift
    # What sanitizers need is allowed to the stable compiler.
    attempt "$sanitizer: $*" env RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_TARGET_DIR="target/$sanitizer" \
        TSAN_OPTIONS="suppressions=$PWD/scripts/lib/tsan.supp:second_deadlock_stack=1" ASAN_OPTIONS=detect_leaks=0 \
        PROPTEST_CASES=64 "$cargo" test --target "$host" "$@"
}

# Arguments of cargo miri test.
interpreted() {
    if ! "$cargo" +nightly miri --version >/dev/null 2>&1; then
        echo "left out: rustup toolchain install nightly --component miri --component rust-src"
        return
    fi
    attempt "miri: $*" env MIRIFLAGS="-Zmiri-disable-isolation" CARGO_TARGET_DIR=target/miri PROPTEST_CASES=2 \
        "$cargo" +nightly miri test "$@"
}

main() {
    [ $# -gt 0 ] || set -- thread address miri
    local what
    for what in "$@"; do
        case $what in
        thread)
            # A standard library that is not built so as well has its own locks taken for races.
            if [ -e "$(rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ]; then
                sanitized thread -Zbuild-std -p sluice-fabric --lib --test hostile --test stress
            else
                echo "left out: rustup component add rust-src"
            fi
            ;;
        address)
            sanitized address -p sluice-fabric --lib --test hostile --test stress
            sanitized address -p sluice-stream -p sluice-stats --lib
            ;;
        miri)
            # What draws histories of a link, or counts far, takes hours there.
            interpreted -p sluice-stream --lib -- receiver:: wire:: --skip any_bytes
            # It knows no system calls of our own, so nothing that maps memory.
            interpreted -p sluice-fabric --lib -- doorbell:: ring::
            ;;
        *)
            echo "usage: $0 [thread|address|miri]..." >&2
            return 2
            ;;
        esac
    done
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}

main "$@"
exit
