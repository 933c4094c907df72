
# Commands after `sluice run`, processes after `sluice stat`, `top` and `trace`.
complete -c sluice -n "__fish_sluice_using_subcommand run" -xa "(__fish_complete_subcommand --fcs-skip=2)"
complete -c sluice -n "__fish_sluice_using_subcommand stat top trace" -xa "(__fish_complete_pids)"
