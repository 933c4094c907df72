//! A stream to another host that this process inherited: the process whose it is brings it to TCP.

use super::PATIENCE_NS;
use crate::emulated_reset;
use crate::socket::{Event, Half, Socket, State};
use crate::unread_copy::owed;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::config::{Level, log};
use sluice_runtime::control_thread;
use sluice_stats::Reason;
use sluice_stream::record::Leave;

/// How the stream is left for this reason.
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
        | Reason::SendBufferSmall
        | Reason::RegisteredClosed
        | Reason::DirectNoAdvert => Leave::Stay,
        // The next call is the kernel's own, or somebody else's.
        _ => Leave::Hand,
    }
}

/// As [`leaving`], of this socket: what a relative that holds it, too, is to read next must come by
/// TCP, also if this process goes on with it, or closes it.
pub(crate) fn leaving_of(sock: &Socket, reason: Reason) -> Leave {
    if sock.is_shared() {
        Leave::Hand
    } else {
        leaving(reason)
    }
}

/// Under the half's lock, in a child of the process whose stream it is: has that bring it to TCP,
/// which is this half's then.
pub fn claim(sock: &'static Socket, half: &Half) {
    if half.state() != State::Inherited {
        return;
    }
    match await_handing(sock) {
        Some(owing) => {
            if owing && core::ptr::eq(half, &sock.rx) {
                owed::owes(sock, owed::SOME);
            }
        }
        None => {
            let fd = sock.fd.load(Ordering::Relaxed);
            log(
                Level::Info,
                format_args!("fd {fd} reset: the process whose stream it was did not hand it over"),
            );
            emulated_reset::make_hard(sock);
        }
    }
    // The thread that handed it over has given the kernel the program's own mark, too.
    sock.low_held.store(false, Ordering::Relaxed);
    half.state.on(Event::HandedOver);
    half.set_dir(None);
    if sock.rx.state() == State::Plain
        && sock.tx.state() == State::Plain
        && let Some((link, index)) = sock.take_stream()
    {
        link.abandon_stream(index);
    }
}

/// Between two looks whether the owner still lives.
const OWNER_NS: u64 = 20_000_000;

/// Whether what lay unread is still to come by TCP. `None`: nobody hands the stream over.
fn await_handing(sock: &'static Socket) -> Option<bool> {
    let family = sock.family()?;
    let end = sys::now_ns() + PATIENCE_NS;
    let owner = family.want();
    control_thread::call_parent();
    loop {
        let handed = family.await_handing(OWNER_NS);
        if handed.is_some() || !sys::is_process(owner) || sys::now_ns() >= end {
            return handed;
        }
    }
}
