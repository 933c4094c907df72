#!/usr/bin/env bash
# The programs of src/preload/tests: each runs plain, with the library, with two copies of it, and with the library
# whose engine is a double that passes every call on (feature `probe`); what it prints and how it ends must
# be the same. Then the double answers with each verdict, and what the program sees is held against
# what TCP would show. Arguments pick tests by name. Last line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
cargo=${CARGO:-cargo}
src=src/preload/tests
lib=$PWD/target/release/libsluice.so
double=$PWD/target/probe/release/libsluice.so
out=$(mktemp -d "${TMPDIR:-/tmp}/sluice-preload-XXXXXX") || exit 1
trap 'rm -rf "$out"' EXIT
. scripts/lib/count.sh
wanted=("$@")

chosen() {
    [ ${#wanted[@]} = 0 ] && return 0
    local each
    for each in "${wanted[@]}"; do [ "$each" = "$1" ] && return 0; done
    return 1
}

# run NAME LIBRARY PROGRAM...: what it prints and its status go to $out/NAME. Two minutes at most; a
# session of its own, so that nothing it does to its group reaches us.
run() {
    local name=$1 library=$2
    shift 2
    env ${library:+"LD_PRELOAD=$library"} timeout -k 5 120 setsid -w "$@" >"$out/$name" 2>&1 </dev/null
    echo "status $?" >>"$out/$name"
}

[ -e "$lib" ] || { echo "$lib is missing: make build"; exit 1; }
"$cargo" build --quiet --release --features probe -p sluice-preload --target-dir target/probe || exit 1
mkdir "$out/copy" && cp "$lib" "$out/copy/" || exit 1
for each in "$src"/*.c; do
    name=$(basename "$each" .c)
    fortify=()
    [ "$name" = chk ] && fortify=(-D_FORTIFY_SOURCE=2)
    cc -O2 -g -pthread -std=gnu11 "${fortify[@]}" -o "$out/$name.bin" "$each" 2>"$out/log" || { cat "$out/log"; exit 1; }
done

# Plain and preloaded: the same.
for test in calls cancel "cancel polls" chk early ends exec handler variadic; do
    chosen "$test" || continue
    read -r -a words <<<"$test"
    program=("$out/${words[0]}.bin" "${words[@]:1}")
    run plain "" "${program[@]}"
    for how in library double copies; do
        case $how in
        library) run "$how" "$lib" "${program[@]}" ;;
        double) run "$how" "$double" "${program[@]}" ;;
        # The second one passes every call on, in each new image.
        copies) run "$how" "$lib:$out/copy/libsluice.so" "${program[@]}"
            sed -i '/^sluice: two copies /d' "$out/$how" ;;
        esac
        difference=$(diff "$out/plain" "$out/$how" | head -5)
        [ -z "$difference" ]; hold $? "$test" "with the $how: $difference"
    done
done

# verdict LETTER RESULT SIGPIPE: every stream call ends with RESULT, SIGPIPE comes or not.
verdict() {
    chosen "verdict $1" || return 0
    run verdict "" env LD_PRELOAD="$double" SLUICE_PROBE_VERDICT="$1" "$out/verdict.bin"
    # Of several messages in a call, all get the verdict, or the first one ends the call.
    local others
    others=$(grep -vE '^(close|syscall|SIGPIPE|status|(recv|send)mmsg)' "$out/verdict" | grep -vF "= $2" | head -3)
    [ -z "$others" ] && [ "$(grep -c 'mmsg' "$out/verdict")" = 3 ] \
        && [ -z "$(grep mmsg "$out/verdict" | grep -vF "= $3")" ]
    hold $? "verdict $1" "not all are $2 (messages: $3): $others $(grep mmsg "$out/verdict" | tr '\n' ' ')"
    if [ "$4" = raised ]; then
        ! grep -q '^SIGPIPE 0 times' "$out/verdict"
    else
        grep -q '^SIGPIPE 0 times' "$out/verdict"
    fi && grep -qx 'close(c) = 0' "$out/verdict" && grep -qx 'status 0' "$out/verdict"
    hold $? "verdict $1" "$(tail -4 "$out/verdict" | tr '\n' ' ')"
}
verdict d 3 2 silent
verdict w "-1 EAGAIN" "-1 EAGAIN" silent
verdict i "-1 EINTR" "-1 EINTR" silent
verdict r "-1 ECONNRESET" "-1 ECONNRESET" silent
verdict p "-1 EPIPE" "-1 EPIPE" raised
verdict q "-1 EPIPE" "-1 EPIPE" silent
verdict f "-1 EFAULT" "-1 EFAULT" silent
verdict k "-1 ETIMEDOUT" "-1 ETIMEDOUT" silent
# A panic of the engine ends in the hook; the call fails and is not made by the kernel as well.
verdict ! "-1 EIO" "-1 EIO" silent

over
