#!/bin/sh
# Every interleaving of the words, the ring and the handshake of src/fabric, by loom. Arguments go to
# the test harness (a part of a test's name runs that test alone).
#
# LOOM_MAX_PREEMPTIONS bounds the forced switches per run: 3 ends in well under a minute and fails
# every seeded bug; 4 takes some minutes.
set -eu
cd "$(dirname "$0")/.."
: "${LOOM_MAX_PREEMPTIONS:=3}"
export LOOM_MAX_PREEMPTIONS
# Optimised, since loom's own work is the time spent, but not linked as slowly as a release.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
# Apart from other builds, which would be thrown away by the flags.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
# Models share nothing.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(nproc)}"
exec cargo test --release -p sluice-fabric --test loom -- "$@"
