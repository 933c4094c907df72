//! The byte-stream protocol of Sluice: two state machines without I/O.
//!
//! Guarantees, for each direction of a stream by itself, and whatever the order and delay of its
//! messages: no byte is lost, repeated or reordered; none lands in a buffer that was given back; ends
//! that honour their actions are never stuck; and a demotion at any moment divides the stream at one
//! position. An event that no honest peer would cause is an [`Error`], never a panic.
//!
//! Refuses to know: sockets, descriptors, memory, clocks, threads, atomics, links. Events go in
//! ([`Sender::on_send`], [`Receiver::on_ring`], …), actions come out ([`Action`], [`Next`]), and the
//! caller carries them out in that order. Being `no_std`, this package could not do otherwise.
//!
//! # Primer
//!
//! The protocol is the dynamic one of MacArthur and Russell, *An Efficient Method for Stream
//! Semantics over RDMA* (IPDPS 2014), with three repairs; `docs/protocol.md` has it in full.
//!
//! ```text
//!   writer                                                   reader
//!   ──────                                                   ──────
//!   on_send ─► Ring{len}    ══ bytes into the ring ═════════► on_ring
//!              (indirect)                                     on_recv ─► Copy(n)
//!   on_ack  ◄═══════════════ ACK: credit, position ═════════  on_copied ─► Ack
//!
//!                                                             on_recv ─► Advertise(a)
//!   on_advert ◄═════════════ ADVERT: buffer, position ══════
//!   on_send ─► Direct{a}    ══ push: bytes into the buffer ═► on_direct
//!   on_send ─► Offer        ══ pull: where the bytes lie ═══► on_offer, on_recv ─► Take
//!   on_taken ◄══════════════ taken ═════════════════════════  on_taken
//!
//!   on_revoke ◄═════════════ REVOKE ════════════════════════  on_revoke
//!   seal, on_seized ─► re-send                                seize
//! ```
//!
//! A writer uses an ADVERT only while its position is the writer's own: then the reader has read
//! every byte ever sent, and the lent buffer is where the next one belongs.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod action;
mod config;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod harness;
pub mod pump;
pub mod receiver;
pub mod receives;
pub mod record;
pub mod sender;
pub mod wire;

pub use action::{Action, Offer, Resend, Route, Wait};
pub use config::{Config, MAX_RING_LEN, Mode, Provider};
pub use error::{Bug, Error, PeerFault};
pub use receiver::{Arrival, Copied, Landing, Next, Receiver, Recv};
pub use record::{Record, Transit};
pub use sender::Sender;
pub use wire::{Ack, Advert, AdvertId, Credit, Phase, Seq, Turn};
