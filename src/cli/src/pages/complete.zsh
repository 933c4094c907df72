
# Processes by number, and programs by name.
_sluice_processes() {
    local -a pids names
    pids=(/proc/<->(N:t))
    names=(${(fu)"$(grep -hx '[[:alnum:]_.+-]*' /proc/<->/comm 2>/dev/null)"})
    _alternative 'pids:process:compadd -a pids' 'names:program:compadd -a names'
}

# The same, and files.
_sluice_traces() {
    _alternative 'processes:process:_sluice_processes' 'files:trace:_files'
}
