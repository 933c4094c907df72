//! How a stream to another host is left, which depends on the socket's next user.

use crate::socket::Socket;
use sluice_stats::Reason;
use sluice_stream::record::Leave;

/// How a stream is left for this reason.
pub(super) fn leaving(reason: Reason) -> Leave {
    match reason {
        Reason::Close | Reason::Exit | Reason::LingerReset | Reason::Disconnected => Leave::Close,
        // The library goes on to read and write the socket, by TCP.
        Reason::Shutdown
        | Reason::RingFull
        | Reason::Fault
        | Reason::Limit
        | Reason::LinkLost
        | Reason::PeerDied
        | Reason::PeerDemoted
        | Reason::PeerHostile
        | Reason::NotEstablished
        | Reason::Idle
        | Reason::Path
        | Reason::MakesRoom
        | Reason::Far
        | Reason::SendBufferSmall
        | Reason::RegisteredClosed
        | Reason::DirectNoAdvert => Leave::Stay,
        // The next call is the kernel's alone, or another process's.
        _ => Leave::Hand,
    }
}

/// As [`leaving`], for this socket. If a relative holds it, too, its unread bytes must come by TCP,
/// even if this process goes on with the socket or closes it.
pub(crate) fn leaving_of(sock: &Socket, reason: Reason) -> Leave {
    if sock.is_shared() {
        Leave::Hand
    } else {
        leaving(reason)
    }
}
