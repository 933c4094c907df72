proc send {channel source} {
    puts -nonewline $channel [read $source 65536]
    if {[eof $source]} {
        flush $channel
        fileevent $channel writable {}
    }
}
proc receive {channel size} {
    set data [read $channel]
    set ::crc($channel) [zlib crc32 $data $::crc($channel)]
    if {[incr ::got($channel) [string length $data]] == $size} {
        close $channel
        incr ::done
    }
}
lassign $argv port connections path
set done 0
for {set n 0} {$n < $connections} {incr n} {
    set channel [socket 127.0.0.1 $port]
    set source [open $path rb]
    fconfigure $channel -translation binary -blocking 0
    set crc($channel) 0
    set got($channel) 0
    fileevent $channel writable [list send $channel $source]
    fileevent $channel readable [list receive $channel [file size $path]]
}
while {$done < $connections} {vwait done}
foreach {channel sum} [array get crc] {puts $sum}
