//! Links: memory that two processes share, and the words, rings and doorbells in it.
//!
//! Guarantees: whatever a peer writes into shared memory, this crate reads it once, checks it
//! against what is possible, and then uses the checked copy; a peer can spoil its own streams and
//! nothing else, and no function here waits for a peer. Knows nothing of sockets or of stream
//! contents.
//!
//! * [`cursors`]: `tail|SEALED` and `head|SEIZED`, the two words that decide a demotion.
//! * [`layout`]: what lies where in an arena.
//! * [`arena`]: sealed memory files, made and checked.
//! * [`ring`]: copies into and out of a ring.
//! * [`doorbell`]: waiter slots: announce sleep, look again, ring.
//! * [`heap`]: memory for lists and records, amid the program's `malloc` too.
//! * [`shared_fd`]: a descriptor that threads write to and one of them closes.
//! * [`filter`]: whether a seccomp filter lets this library's system calls through.
//! * [`shm`]: a [`shm::Link`] between two processes of one host.
//! * [`verbs`]: queue pairs to another host.
//!
//! # Example
//!
//! Both ends of a link in one process: five bytes through a ring, and then a demotion, after which
//! the writer knows which of them it has to send again.
//!
//! ```
//! use sluice_fabric::{arena::Arena, cursors, shm::Link};
//!
//! let arena = Arena::create_local().unwrap();
//! let [writer, reader] = Link::open_both(arena, [0, 1], true).unwrap();
//! let index = writer.give_stream(64 << 10, 1).unwrap();
//! assert!(reader.join_stream(index, 64 << 10, 1));
//! let direction = &writer.stream(index).unwrap().dir[0];
//! // The reader has lent the ring, out of its half of the memory.
//! let lent = reader.lent_for(index).unwrap();
//! let ring = writer.arena().unwrap().ring(1, lent.at, lent.len).unwrap();
//!
//! // SAFETY: five bytes, and the ring is longer; nobody reads it before the tail has moved.
//! unsafe { ring.copy_in(0, b"hello".as_ptr(), 5) };
//! direction.tx.tail.advance(0, 5).unwrap();
//!
//! let mut bytes = [0u8; 3];
//! assert_eq!(direction.tx.tail.read().offset, 5);
//! // SAFETY: three bytes, which the tail says are there.
//! unsafe { ring.copy_out(0, bytes.as_mut_ptr(), 3) };
//! direction.rx.head.consume(0, 0, 3).unwrap();
//! assert_eq!(&bytes, b"hel");
//!
//! // Either end may take the direction back to TCP: two bytes were not read.
//! assert_eq!(cursors::demote(&direction.tx.tail, &direction.rx.head), (3, 5));
//! assert!(direction.tx.tail.advance(5, 6).is_err());
//! ```

#[cfg(not(loom))]
pub mod arena;
pub mod bucket;
pub mod cursors;
pub mod doorbell;
#[cfg(not(loom))]
pub mod filter;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod shared_fd;
#[cfg(not(loom))]
pub mod shm;
pub mod sync;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod verbs;
