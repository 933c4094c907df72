//! Sockets: the state of each connection, blocking calls, options, and the life of descriptors.

pub mod abort_on_exit;
pub mod after_tcp;
pub mod carrier;
pub mod counts;
pub mod demote;
pub mod descriptors;
pub mod digests;
pub mod direct;
pub mod emulated_reset;
pub mod events;
pub mod finish;
pub mod fork_shared;
pub mod give_up;
pub mod inodes;
pub mod io_wait;
pub mod jobs;
#[cfg(test)]
mod journeys;
pub mod leave;
pub mod linger;
pub mod meeting;
pub mod observe_passed;
pub mod options;
pub mod peer_end;
pub mod prefix;
pub mod raw_use;
pub mod record;
pub mod recv;
pub mod remote;
pub mod report;
pub mod resend;
pub mod scm_rights;
pub mod send;
pub mod setsockopt;
pub mod socket;
pub mod stall_watch;
pub mod tcp;
pub mod tell;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trigger;
pub mod trim;
pub mod unread_copy;
pub mod upgrade;
pub mod uring;
pub mod verdict;
pub mod wait;
pub mod wake;
pub mod why;
pub mod work;

/// A long transfer publishes after so many bytes, so that the other end copies at the same time.
pub(crate) const PUBLISH: usize = 64 << 10;
/// The same between hosts, where a message costs more: credit comes by half rings, and the other
/// half is in flight meanwhile.
pub(crate) const PUBLISH_REMOTE: usize = 2 * PUBLISH;
