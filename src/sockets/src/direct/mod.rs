//! Direct transfer: the reader copies out of the writer's memory, without a ring in between.
//!
//! The rules (phases, ADVERTs, which transfer when) are in `sluice-stream`; this module applies
//! them to the words of shared memory. Small sends and receives do not come here: the state
//! machines are told of their bytes in one go, before the next large transfer.
//!
//! ```text
//!   writer                                    reader
//!   offer line, number last; ring sleepers
//!   spin on the head, no lock held             sees the number; checks that the ring is empty
//!                                              claim; one process_vm_readv: bytes, then the token
//!                                              take: head (round, T) → (round, T+n)
//!   sees the head beyond T: n are sent         tail follows
//!   or, out of patience:
//!   withdraw: head (round, H) → (round+1, H)   take fails; copy discarded
//! ```
//!
//! The token identifies the peer's process. The same call reads it from where the peer said at the
//! meeting, so it comes from the same memory as the bytes: after an exec, or in another process
//! with the same pid, it is not there.
//!
//! An offer is up only while its `send` spins, without the lock. That send has the turn from its
//! first offer to its end, since TCP would not put another thread's bytes in the middle of it.
//! Other threads wait, for a bounded time (a thread that jumped out of its send never ends it), or
//! get EAGAIN if they may not wait. A demotion by another thread, or by a handler of the same one,
//! resolves the offer and leaves the outcome for its owner.

mod outcome;
mod rx;
pub mod state;
mod tx;

pub(crate) use outcome::{begin_tx, is_up, settled};
pub(super) use rx::{Found, Wants, begin_rx, revoke, try_recv};
pub(crate) use tx::{Tried, end_turn, make_way, resolve, try_send};

use crate::socket::Socket;
use sluice_runtime::config::{Mode, config};
use sluice_stream::{self as stream, Provider};

/// Most bytes of one take: a longer copy falls out of the processor's cache.
const PIECE: usize = 256 << 10;
/// A size that no transfer has.
const NEVER: u32 = u32::MAX;

fn mode() -> stream::Mode {
    match config().mode {
        Mode::Dynamic => stream::Mode::Dynamic,
        Mode::Direct => stream::Mode::Direct,
        Mode::Indirect => stream::Mode::Indirect,
    }
}

/// The terms of one direction, and the least size for which direct transfer is considered.
fn terms(sock: &Socket, ring_len: u64) -> Option<(stream::Config, u32)> {
    if !sock.carrier().pulls {
        return None;
    }
    let gate = match (config().mode, config().direct_min) {
        (Mode::Indirect, _) | (Mode::Dynamic, None) => NEVER,
        (Mode::Direct, _) => 0,
        (Mode::Dynamic, Some(least)) => least,
    };
    let terms = stream::Config::new(mode(), Provider::Pull, ring_len as u32, gate).ok()?;
    Some((terms, gate))
}
