proc answer {channel} {
    puts -nonewline $channel [read $channel]
    if {[eof $channel]} {
        close $channel
        if {[incr ::closed] == $::connections} exit
    }
}
proc accept {channel host port} {
    fconfigure $channel -translation binary -blocking 0 -buffering none
    fileevent $channel readable [list answer $channel]
}
lassign $argv port connections
set closed 0
socket -server accept -myaddr 127.0.0.1 $port
vwait forever
