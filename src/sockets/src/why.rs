//! Why a stream goes back to TCP: counted here, and told to the peer.

use crate::socket::Socket;
use crate::trigger;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_stats::Reason;

/// Counts the reason, once per stream. If the peer demoted first and said why, its reason counts.
pub fn count(sock: &Socket, reason: Reason) {
    if sock.counted.swap(true, Ordering::Relaxed) {
        return;
    }
    if !reason.is_no_fault() {
        sock.backoff.fetch_add(1, Ordering::Relaxed);
    } else {
        trigger::comes_back(sock);
    }
    let told = match reason {
        // If the peer has left the stream first, its reason is the cause, not that this end closes
        // after it.
        Reason::PeerDemoted | Reason::Close | Reason::Exit => reason_of_peer(sock),
        _ => None,
    };
    let conn = sock.conn();
    if !sock.upgraded.load(Ordering::Relaxed) {
        // The stream never carried a byte: the connection simply stays on TCP.
        return match told {
            Some(theirs) => conn.stays_for_peer(theirs),
            None => conn.stays(reason),
        };
    }
    conn.demoted(told.unwrap_or(reason), told.is_some());
    let whose = told.map_or("", |_| "the other end: ");
    sluice_runtime::config::log(
        sluice_runtime::config::Level::Info,
        format_args!(
            "fd {} back to TCP: {whose}{}",
            sock.fd.load(Ordering::Relaxed),
            told.unwrap_or(reason).words()
        ),
    );
}

/// The reason that the peer gave when it demoted the stream. Unverified: shown to people only.
fn reason_of_peer(sock: &Socket) -> Option<Reason> {
    let as_writer = sock.rx.dir().map(|dir| &dir.tx_wishes.why);
    let as_reader = sock.tx.dir().map(|dir| &dir.rx_wishes.why);
    first_told([as_writer, as_reader])
}

fn first_told(words: [Option<&AtomicU32>; 2]) -> Option<Reason> {
    let told = |why: &AtomicU32| Reason::from_u16(why.load(Ordering::Relaxed) as u16);
    let mut all = words.into_iter().flatten().filter_map(told);
    all.find(|reason| reason.is_told())
}

/// Tells the peer why this end demotes the stream; call before the demotion.
pub fn tell(why: &AtomicU32, reason: Reason) {
    if reason != Reason::PeerDemoted {
        why.store(reason as u32, Ordering::Relaxed);
    }
}
