# To be sourced by a script of tests: counts what holds, tells of what does not, and prints the last line.

passed=0 failed=0

# hold STATUS NAME WHY...: STATUS 0 is a pass.
hold() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $2${3:+: ${*:3}}"
        return 1
    fi
}

# is NAME COMMAND...: it succeeds; what it printed goes to $folder/said, and is shown if it does not.
is() {
    "${@:2}" >"$folder/said" 2>&1
    hold $? "$1" "${*:2}" || tail -n 40 "$folder/said"
}

# The last line, and the end.
over() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
