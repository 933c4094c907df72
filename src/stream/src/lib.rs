//! The byte-stream protocol of Sluice: two state machines without I/O.
//!
//! Guarantees, for each direction of a stream by itself, and whatever the order and delay of its
//! messages: no byte is lost, repeated or reordered; none lands in a buffer that was given back;
//! ends that honour their actions are never stuck; and a demotion at any moment divides the stream
//! at one position. An event that no honest peer would cause is an [`Error`], never a panic.
//!
//! Refuses to know: sockets, descriptors, memory, clocks, threads, atomics, links. Events go in
//! ([`Sender::on_send`], [`Receiver::on_ring`], …), actions come out ([`Action`], [`Next`]), and
//! the caller carries them out in that order. Being `no_std`, this package could not do otherwise.
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
//!
//! # Example
//!
//! Five bytes by the ring. The caller is the link: it copies, and carries what one end says to the
//! other.
//!
//! ```
//! use sluice_stream::{Action, Config, Mode, Next, Provider, Receiver, Recv, Route, Sender};
//!
//! let terms = Config::new(Mode::Dynamic, Provider::Push, 4096, 1024).unwrap();
//! let (mut writer, mut reader) = (Sender::new(&terms), Receiver::new(&terms));
//!
//! // The writer's program sends 5 bytes: they fit into the ring.
//! let Action::Ring { len, .. } = writer.on_send(5, Route::Ring) else { panic!() };
//! assert_eq!(len, 5);
//! // Here they would be copied into the reader's ring, and the reader be told.
//! reader.on_ring(len).unwrap();
//!
//! // The reader's program asks for 100: it gets what is there.
//! let recv = Recv { place: 0, key: 0, len: 100, low: 1, waitall: false, peek: false, wait: true };
//! assert!(matches!(reader.on_recv(&recv), Next::Copy(5)));
//! reader.on_copied(5).unwrap();
//! // What it has read is credit for the writer.
//! if let Some(ack) = reader.flush() {
//!     writer.on_ack(ack).unwrap();
//! }
//! assert_eq!(writer.acked(), reader.seq());
//!
//! // A demotion divides the stream at one place: nothing is left to send again.
//! writer.seal();
//! assert!(writer.on_seized(reader.seize()).unwrap().is_empty());
//! ```
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
