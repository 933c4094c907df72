//! What an endpoint holds of its device, under its lock. Describes and posts messages.

use super::control_memory::ControlMemory;
use super::direct_qp::DirectQps;
use super::endpoint::Endpoint;
use super::memory::{self, Place, Slabs, Use};
use super::pace::{ReaderPace, WriterPace};
use super::pages::{Pages, Until};
use super::queue::Share;
use super::terms::{BATCH, FENCE, Hello, Lost, Note, TICK_NS, TICKS};
use core::ptr;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::Errno;
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Device, Domain};
use sluice_fabric::verbs::queue::{Pair, Post, Proof};
use sluice_stream::pump::{Lent, Message, Pump, What};
use sluice_stream::wire::{Berth, CONTROL_LEN};
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages, and bytes, of which only the last work request is signaled (asks for a completion).
const MARK_MESSAGES: usize = 16;
const MARK_BYTES: usize = 2048;
/// Ticks with a step of a switch due, after which the link is lost. For each of two steps this end
/// may wait for a program that has TCP bytes to read (`jobs::watch_far`).
const STEP_TICKS: u8 = 6;

/// A stream and its ring at this end, as the peer must know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// This end's number of the stream.
    pub stream: u16,
    /// The ring that the peer writes to.
    pub ring: Lent,
}

impl From<Offered> for Berth {
    fn from(Offered { stream, ring }: Offered) -> Self {
        let Lent { place, key, len } = ring;
        Self {
            stream,
            place,
            key,
            len,
        }
    }
}

impl From<Berth> for Offered {
    fn from(berth: Berth) -> Self {
        let Berth {
            stream,
            place,
            key,
            len,
        } = berth;
        let ring = Lent { place, key, len };
        Self { stream, ring }
    }
}

/// The staging ring of a stream, and the pump's cursors.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub(crate) staging: Place,
    pub(crate) staging_len: u32,
    /// Where the pump has last put the cursors that it writes.
    pub(crate) tail: u64,
    pub(crate) head: u64,
    /// Length of the ring that is lent to the peer.
    pub(crate) lent_len: u32,
    pub(crate) reader: ReaderPace,
    pub(crate) writer: WriterPace,
}

/// What the endpoint's inner lock guards.
#[derive(Debug)]
pub struct EndpointState {
    // Drop order: queue pairs, the connection, the completion queue, memory, its domain.
    pub(crate) direct_qps: DirectQps,
    pub(crate) pair: Pair,
    pub(crate) id: Id,
    pub(crate) share: Share,
    pub(crate) endpoint: &'static Endpoint,
    pub(crate) slabs: Slabs,
    pub(crate) pages: Pages,
    pub(crate) control: ControlMemory,
    /// Shared with the control thread while it registers outside the lock.
    pub(crate) domain: Arc<Domain>,
    /// Plays the far side of the streams' rings.
    pub pump: Pump,
    /// Messages that are complete.
    pub complete: u64,
    /// The rings that are lent to the peer, by this end's number.
    pub(crate) lent: Vec<Option<Place>>,
    /// Room for the staging rings of streams that are not open yet, by this end's number.
    pub(crate) reserved: Vec<Option<memory::Share>>,
    /// The rings in which bytes for the peer wait, by this end's number.
    pub(crate) staging: Vec<Option<Place>>,
    /// By this end's number.
    pub(crate) places: Vec<Option<Places>>,
    pub(crate) peer: Hello,
    pub(crate) immediate: bool,
    /// A poll has left work to [`settle`](super::queue::Queue::settle).
    pub(crate) rest: bool,
    /// Messages and bytes posted since the last signaled one.
    pub(crate) unmarked: usize,
    pub(crate) unmarked_bytes: usize,
    /// Completions asked for, and those that came.
    pub(crate) marks: u64,
    pub(crate) marked: u64,
    /// When the next tick is due, 0: none; at the last one, `marks` and `marked`; ticks in a row
    /// without a completion.
    pub(crate) tick_ns: u64,
    pub(crate) looked: (u64, u64),
    pub(crate) stuck: u8,
    pub(crate) notes: VecDeque<Note>,
    pub(crate) lost: Option<Lost>,
}

impl EndpointState {
    pub(crate) fn is_on(&self, device: Device) -> bool {
        self.id
            .device()
            .is_ok_and(|own| own.descriptors() == device.descriptors())
    }

    pub(crate) fn receive(&self, slot: u64) -> Result<(), Errno> {
        let into =
            (!self.immediate).then(|| (self.control.said(slot), self.control.said.local_key()));
        // SAFETY: the buffer lives as long as the queue pair: `control` is dropped after `pair`.
        unsafe { self.pair.receive(slot, into) }
    }

    /// Registers the ring of a stream at one end of the arena. Returns its place and length.
    pub(crate) fn place(
        &mut self,
        link: &'static Link,
        stream: u32,
        for_what: Use,
    ) -> Result<(Place, u32), Errno> {
        let full = libc::ENOBUFS;
        let arena = link.arena().ok_or(full)?;
        let lent = link.lent_for(stream).ok_or(full)?;
        let ring = arena.ring(link.side(), lent.at, lent.len).ok_or(full)?;
        // SAFETY: the arena is unmapped only after the endpoint has ended, and dropped these slabs.
        let place = unsafe { self.slabs.place(&self.domain, ring, lent.at, for_what) }?;
        Ok((place, lent.len))
    }

    /// Both ends have left the stream, or it was never opened: frees its rings.
    pub(crate) fn give_back(&mut self, stream: u16) {
        let messages = [
            self.complete,
            self.complete + self.pump.outstanding() as u64,
        ];
        let mut give_back = |of: &mut [Option<Place>]| {
            if let Some(place) = of.get_mut(usize::from(stream)).and_then(Option::take) {
                self.slabs.give_back(place, messages);
            }
        };
        give_back(&mut self.lent);
        give_back(&mut self.staging);
        let until = self.until(messages[1]);
        self.pages.give_back(stream, until);
        self.end_pages();
        self.reserved.get_mut(usize::from(stream)).map(Option::take);
    }

    /// Messages up to this one, and all direct transfers so far.
    fn until(&self, messages: u64) -> Until {
        Until {
            messages,
            transfers: self.direct_qps.shots,
        }
    }

    /// The stream's bytes before `to` are completed and credited, or were moved elsewhere.
    pub(crate) fn release_pages(&mut self, stream: u16, to: u64) {
        let posted = self.complete + self.pump.outstanding() as u64;
        let until = self.until(posted);
        self.pages.release(stream, to, until);
        self.end_pages();
    }

    /// Messages or transfers are complete: windows may go.
    pub(crate) fn end_pages(&mut self) {
        let done = Until {
            messages: self.complete,
            transfers: self.direct_landed(),
        };
        if self.pages.completed(done) {
            self.notes.push_back(Note::Pages);
        }
    }

    /// If all that the stream's record waited for has come, the control thread must write it.
    pub(crate) fn note_record(&mut self, stream: u16) {
        if self.pump.record(stream).is_some() {
            self.notes.push_back(Note::Stream(stream));
        }
    }

    /// A tick is due. Returns the ns until the next, if any.
    pub(crate) fn tick(&mut self, now: u64) -> Result<Option<u64>, Lost> {
        let (asked, came) = self.looked;
        self.stuck = if came == self.marked && asked > came {
            self.stuck + 1
        } else {
            0
        };
        let steps = self.pump.tick();
        self.tick_direct_qp();
        if self.stuck >= TICKS {
            return Err(Lost::Silent);
        }
        if steps >= STEP_TICKS {
            return Err(Lost::Late);
        }
        if self.marks == self.marked && self.unmarked > 0 {
            // None of these was signaled, so nothing tells whether they complete.
            self.pump.probe();
        }
        self.looked = (self.marks, self.marked);
        if !self.is_outstanding() && steps == 0 {
            self.tick_ns = 0;
            return Ok(None);
        }
        self.tick_ns = now + TICK_NS;
        Ok(Some(TICK_NS))
    }

    pub(crate) fn post(&mut self) -> Result<(), Lost> {
        let nothing = Post {
            from: (ptr::null(), 0, 0),
            to: (0, 0),
            word: 0,
            mark: None,
            by_device: false,
        };
        loop {
            let mut batch = [nothing; BATCH];
            let (mut n, mut fences) = (0, false);
            while n < BATCH
                && let Some(message) = self.pump.poll()
            {
                if message.what == What::Fence {
                    fences = true;
                    break;
                }
                if let What::Direct { .. } = message.what {
                    self.shoot(message);
                } else if let Some(post) = batch.get_mut(n) {
                    *post = self.describe(message);
                    n += 1;
                }
            }
            let posts = batch.get(..n).unwrap_or_default();
            if posts.is_empty() && !fences {
                return Ok(());
            }
            // SAFETY: bytes in staging rings stay until they are completed and credited, and
            // control messages until the peer has reposted their receive.
            unsafe { self.pair.post(posts) }.map_err(|_| Lost::Device(0))?;
            if fences {
                self.fence().map_err(|_| Lost::Device(0))?;
            }
        }
    }

    /// An RDMA READ, which completes after all earlier WRITEs have landed.
    fn fence(&mut self) -> Result<(), Errno> {
        self.marks += 1;
        let proof = Proof {
            into: self.control.sink(),
            from: (self.peer.place, self.peer.key),
        };
        // SAFETY: the sink lives as long as the queue pair, and the peer lets its slots be read.
        unsafe { self.pair.read(&proof, FENCE) }
    }

    /// True if work requests are posted that must complete: the link's timer runs then.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.pump.outstanding() + self.pump.direct_outstanding() != 0 || self.pump.is_fencing()
    }

    /// The place of a stream's bytes, and the local key; and whether a file has them.
    pub(crate) fn bytes_at(&self, stream: u16, at: u64) -> ((*const u8, u32), bool) {
        let in_file = self.pages.place(stream, at);
        let place = in_file.unwrap_or_else(|| self.staged(stream, at));
        (place, in_file.is_some())
    }

    pub(crate) fn describe(&mut self, Message { what, word }: Message) -> Post {
        let (mut probe, mut by_device) = (false, false);
        let (from, to) = match what {
            What::Bytes {
                stream,
                from,
                len,
                to,
            } => {
                let (at, key);
                ((at, key), by_device) = self.bytes_at(stream, from.value());
                ((at, len, key), to)
            }
            What::Control { slot, bytes } => {
                let out = self.control.out(slot);
                // SAFETY: `out` is in the mapping, and the peer has read the message that was
                // there.
                unsafe { out.write(bytes) };
                let slot_at = u64::from(slot) * CONTROL_LEN as u64;
                // The peer's word for the address. Its device refuses what its key does not open.
                let to = self.peer.place.wrapping_add(slot_at);
                let from = (
                    out.cast_const().cast(),
                    CONTROL_LEN as u32,
                    self.control.out.local_key(),
                );
                (from, (to, self.peer.key))
            }
            What::Count | What::Fence | What::Direct { .. } => {
                probe = true;
                ((ptr::null(), 0, 0), (self.peer.place, self.peer.key))
            }
        };
        self.unmarked += 1;
        self.unmarked_bytes += from.1 as usize;
        let full = self.unmarked >= MARK_MESSAGES || self.unmarked_bytes >= MARK_BYTES;
        let mark = (full || probe).then(|| {
            self.unmarked_bytes = 0;
            self.marks += 1;
            core::mem::take(&mut self.unmarked) as u64
        });
        Post {
            from,
            to,
            word,
            mark,
            by_device,
        }
    }

    /// The place of a stream's byte in its staging ring, and the local key.
    fn staged(&self, stream: u16, at: u64) -> (*const u8, u32) {
        let place = self.places.get(usize::from(stream)).copied().flatten();
        place.map_or((ptr::null(), 0), |place| {
            let at = at & u64::from(place.staging_len - 1);
            let address = place.staging.at.cast_const().wrapping_add(at as usize);
            (address, place.staging.local_key)
        })
    }
}
