#!/usr/bin/env bash
# Fuzzes what a peer, a file or another process says, guided by coverage (fuzz/coverage, docs/fuzzing.md). It needs cargo-fuzz
# (`cargo install cargo-fuzz`) and a C++ compiler. No nightly compiler: what the sanitizers need is allowed to the stable one here.
#
#   scripts/coverage.sh [--seconds N] [--seed N] [TARGET...]   each target for so long, two at once; new inputs stay in target
#   scripts/coverage.sh --minimise [TARGET...]                 what these have found goes into the kept corpora, as few as reach the same
#   scripts/coverage.sh --reproduce TARGET FILE                one input
#
# The last line is `N passed, N failed`, a target each.
set -euo pipefail
cd "$(dirname "$0")/.."
home=fuzz/coverage
built=$PWD/target/coverage
seconds=60 seed=0 mode=fuzz
targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --minimise) mode=minimise; shift ;;
    --reproduce) mode=reproduce; shift ;;
    -*) sed -n '2,/^set/s/^# \?//p' "$0" | sed '$d' >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
    esac
done
input=
if [ $mode = reproduce ]; then
    [ ${#targets[@]} = 2 ] || { echo "usage: $0 --reproduce TARGET FILE" >&2; exit 2; }
    input=$(realpath "${targets[1]}")
    targets=("${targets[0]}")
fi
cargo=${CARGO:-cargo}
if ! "$cargo" fuzz --version >/dev/null 2>&1; then
    echo 'cargo-fuzz is missing: cargo install cargo-fuzz' >&2
    exit 1
fi
all=$(cd $home/targets && ls -- *.rs | sed 's/\.rs$//')
[ ${#targets[@]} -gt 0 ] || mapfile -t targets <<<"$all"
for target in "${targets[@]}"; do
    [ -e "$home/targets/$target.rs" ] || { echo "no target $target: there are" $all >&2; exit 2; }
done

export RUSTC_BOOTSTRAP=1
# All of one input is one process's work: a leak of the library's own structures, which it keeps for good, is none.
# The process that receives descriptors runs in the same memory on a stack of its own (CLONE_VM). What
# ASan keeps of returned frames goes by the thread, so it would take frames of the fuzzer for returned.
options=detect_leaks=0:detect_stack_use_after_return=0
export ASAN_OPTIONS=$options${ASAN_OPTIONS:+:$ASAN_OPTIONS}
if [ ${#targets[@]} -gt 1 ]; then
    "$cargo" fuzz build --fuzz-dir $home --features libfuzzer --target-dir "$built" >&2
else
    "$cargo" fuzz build --fuzz-dir $home --features libfuzzer --target-dir "$built" "${targets[0]}" >&2
fi
programs=$built/$(rustc -vV | sed -n 's/^host: //p')/release
# Longest input, and longest time for one.
bounds=(-max_len=4096 -timeout=20 -rss_limit_mb=4096 -detect_leaks=0)

# A target's kept inputs, and what it has found in addition.
fuzz() {
    local target=$1 found=$built/corpus/$1 crashes=$built/crashes
    mkdir -p "$found" "$crashes"
    if ! "$programs/$target" "${bounds[@]}" -seed="$seed" -max_total_time="$seconds" -print_final_stats=1 \
        -artifact_prefix="$crashes/$target-" "$found" "$home/corpus/$target" >"$built/$target.log" 2>&1; then
        echo "FAILED  $target: $(grep -m 1 -A 1 -E 'panicked at|ERROR:|SUMMARY|deadly signal' "$built/$target.log" | tr '\n' ' ')"
        sed -n 's/^.*Test unit written to /        its input: /p' "$built/$target.log"
        echo "        all of it: $built/$target.log"
        return 1
    fi
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$built/$target.log")
    echo "ok      $target: $runs inputs, $(sed -n 's/^stat::average_exec_per_sec: *//p' "$built/$target.log") a second"
}

# As few inputs as reach all that the kept and the found ones do; those that have a name stay.
minimise() {
    local target=$1 kept=$home/corpus/$1 found=$built/corpus/$1 few file
    few=$(mktemp -d "$built/few.XXXXXX")
    mkdir -p "$found"
    "$programs/$target" "${bounds[@]}" -use_counters=0 -set_cover_merge=1 "$few" "$kept" "$found" >"$built/$target.log" 2>&1
    for file in "$kept"/*; do
        # The fuzzer's names are hashes.
        [[ ${file##*/} =~ ^[0-9a-f]{40}$ ]] && rm -f "$file"
    done
    # Within what the tree is to hold.
    find "$few" -type f -printf '%s %p\n' | sort -n | head -n 190 | cut -d' ' -f2- | xargs -r -d '\n' cp -t "$kept"
    rm -rf "$few"
    echo "ok      $target: $(find "$kept" -type f | wc -l) inputs, $(du -sb --apparent-size "$kept" | cut -f1) bytes"
}

passed=0 failed=0
case $mode in
reproduce) exec "$programs/${targets[0]}" "${bounds[@]}" "$input" ;;
minimise)
    for target in "${targets[@]}"; do
        if minimise "$target"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
    ;;
fuzz)
    running=0
    for target in "${targets[@]}"; do
        if [ $running = 2 ]; then
            if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
            running=1
        fi
        fuzz "$target" &
        running=$((running + 1))
    done
    while [ $running -gt 0 ]; do
        if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
        running=$((running - 1))
    done
    ;;
esac
echo "$passed passed, $failed failed"
[ $failed = 0 ]
