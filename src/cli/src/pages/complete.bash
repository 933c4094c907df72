
# Commands after `sluice run`, processes and programs after `sluice stat`, `top` and `trace`; what
# is above completes the rest.
_sluice_words() {
    local cur=${COMP_WORDS[COMP_CWORD]} at=2 pids
    COMPREPLY=()
    case ${COMP_WORDS[1]} in
    run)
        # Where the command is: after the options. Bash makes words of their own of `=`.
        while ((at < COMP_CWORD)); do
            case ${COMP_WORDS[at]} in
            --) ((at++)); break ;;
            -e | --env | --mode | --upgrade | --trace)
                ((at++))
                [[ ${COMP_WORDS[at]} == = ]] && ((at++))
                ((at++)) ;;
            =) ((at += 2)) ;;
            -*) ((at++)) ;;
            *) break ;;
            esac
        done
        if ((at > COMP_CWORD)) || [[ $at == "$COMP_CWORD" && $cur == -* ]]; then
            _sluice "$@"
        elif declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$at"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$at"
        elif ((at == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$cur" | sort -u)
        fi
        return
        ;;
    stat | top | trace)
        if [[ $cur != -* && $cur != = && ${COMP_WORDS[COMP_CWORD - 1]} != -* ]]; then
            # Others choose the names of their programs, and compgen expands what it is given: no
            # name with a letter that means something to the shell.
            pids=(/proc/[0-9]*)
            mapfile -t COMPREPLY < <(compgen -W "${pids[*]#/proc/}
                $(grep -hx '[[:alnum:]_.+-]*' /proc/[0-9]*/comm 2>/dev/null)" -- "$cur" | sort -u)
            return
        fi
        ;;
    esac
    _sluice "$@"
}
complete -F _sluice_words -o bashdefault -o default sluice
