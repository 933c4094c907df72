//! A link's queue pair, its local arena, and the pump between them: what the program has put into a ring goes out, and what the peer's
//! device has written is told as a writer within the host would tell it.
//!
//! The program's side of the arena is [`Link`] `near`; the pump plays the other, `far`. Whoever is in a hook of such a stream drives
//! the wire, and whoever sleeps on one waits for its descriptor too.

use super::memory::{Place, Slabs, Use};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use sluice_fabric::layout::Direction;
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_fabric::verbs::queue::{Completions, News, Pair, Post, Said, Shape};
use sluice_stream::pump::{Came, Lent, Message, Opening, Pump, Terms, What};
use sluice_stream::record::{Nonce, Role};
use sluice_stream::wire::CONTROL_LEN;
use sluice_stream::{Error, Seq};

/// Receives that each end of a link keeps posted: part of the protocol.
const RECEIVES: u16 = 64;
/// Messages that may be posted and not completed.
const SENDS: u16 = 64;
/// Bytes of one message at most: more does not make it faster, and others wait behind it.
const MESSAGE_LEN: u32 = 256 << 10;
/// A completion is asked for once in so many messages, or bytes.
const MARK_MESSAGES: usize = 16;
const MARK_BYTES: usize = 2048;
/// Messages given to the device at once.
const BATCH: usize = 16;

const SHAPE: Shape = Shape {
    // Each message may be two requests.
    sends: 2 * SENDS as u32,
    receives: RECEIVES as u32,
    inline: 64,
};

/// The link works no more; its streams go on on TCP.
#[derive(Debug)]
pub enum Lost {
    /// The device refused, or reported this `ibv_wc_status`.
    Device(u32),
    /// The peer broke the rules.
    Peer(Error),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Peer(error)
    }
}

/// How a peer reaches this end's control slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Address of the first slot.
    pub place: u64,
    /// Their key.
    pub key: u32,
}

/// Memory beside the arena: control slots of the peer's, of ours on their way out, and what a SEND says where the device has no
/// immediates.
#[derive(Debug)]
struct Small {
    at: *mut u8,
    slots: Region,
    out: Region,
    said: Region,
}

// SAFETY: an address; who writes where is decided by the pump, under its lock.
unsafe impl Send for Small {}
// SAFETY: as above.
unsafe impl Sync for Small {}

const SLOTS_LEN: usize = RECEIVES as usize * CONTROL_LEN;
const SAID_LEN: usize = RECEIVES as usize * size_of::<Said>();
const SMALL_LEN: usize = (2 * SLOTS_LEN + SAID_LEN).next_multiple_of(4096);

impl Small {
    fn new(domain: &Domain) -> Result<Self, Errno> {
        // Shared with children: their copies of pages would take ours from under the device.
        let at = sys::map_zeroes(SMALL_LEN, true)?;
        // SAFETY: mapped above, and unmapped behind the regions.
        let registered = unsafe { Self::register(domain, at) };
        if registered.is_err() {
            // SAFETY: nothing else knows it.
            unsafe { sys::unmap(at, SMALL_LEN) };
        }
        registered
    }

    /// # Safety
    /// [`SMALL_LEN`] bytes are mapped at `at`, and stay so.
    unsafe fn register(domain: &Domain, at: *mut u8) -> Result<Self, Errno> {
        // SAFETY: the caller's word; three parts of the mapping.
        unsafe {
            let slots = domain.lend(at, SLOTS_LEN)?;
            let out = domain.stage(at.add(SLOTS_LEN), SLOTS_LEN)?;
            let said = domain.take_in(at.add(2 * SLOTS_LEN), SAID_LEN)?;
            Ok(Self {
                at,
                slots,
                out,
                said,
            })
        }
    }

    fn slot(&self, slot: u16) -> *mut [u8; CONTROL_LEN] {
        let at = usize::from(slot % RECEIVES) * CONTROL_LEN;
        // SAFETY: inside the mapping.
        unsafe { self.at.add(at) }.cast()
    }

    fn out(&self, slot: u16) -> *mut [u8; CONTROL_LEN] {
        // SAFETY: inside the mapping.
        unsafe { self.slot(slot).cast::<u8>().add(SLOTS_LEN) }.cast()
    }

    fn said(&self, slot: u64) -> *mut Said {
        let at = 2 * SLOTS_LEN + slot as usize % usize::from(RECEIVES) * size_of::<Said>();
        // SAFETY: inside the mapping, and aligned.
        unsafe { self.at.add(at) }.cast()
    }
}

/// One stream's places.
#[derive(Clone, Copy, Debug)]
struct Places {
    staging: Place,
    staging_len: u32,
    /// Where the pump has put the words that it writes.
    tail: u64,
    head: u64,
}

#[derive(Debug)]
struct Inner {
    pump: Pump,
    /// By this end's number.
    places: Vec<Option<Places>>,
    /// Posted since a completion was asked for last.
    unmarked: usize,
    unmarked_bytes: usize,
    slabs: Slabs,
}

/// A step of a stream's switch has come: does what [`Pump::action`] says. With the wire locked.
pub type OnStep = fn(&mut Pump, u16);

/// See the [module](self).
#[derive(Debug)]
pub struct Wire {
    // In the order in which they must go.
    pair: Pair,
    id: Id,
    completions: Completions,
    inner: Guarded<Inner>,
    small: Small,
    domain: Domain,
    near: &'static Link,
    far: &'static Link,
    peer: Hello,
    immediate: bool,
    on_step: OnStep,
    /// Somebody wanted to drive while another did.
    again: AtomicBool,
}

/// A stream's ring here, for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// This end's number of the stream.
    pub stream: u16,
    /// The ring that the peer writes to.
    pub ring: Lent,
}

impl Wire {
    /// The wire of an id that is routed, or was asked for; `near` and `far` are both ends of a link of this process with itself.
    /// Receives are posted; the peer is to be told [`hello`](Self::hello).
    ///
    /// # Errors
    /// The device's.
    pub fn new(id: Id, [near, far]: [&'static Link; 2], on_step: OnStep) -> Result<Self, Errno> {
        let device = id.device()?;
        let domain = Domain::new(device)?;
        let completions = Completions::new(&device, 2 * u32::from(SENDS + RECEIVES))?;
        sys::set_nonblocking(completions.descriptor())?;
        let small = Small::new(&domain)?;
        let pair = id.pair(&domain, &completions, SHAPE)?;
        let terms = Terms {
            ours: RECEIVES,
            theirs: RECEIVES,
            sends: SENDS,
            message_len: MESSAGE_LEN,
        };
        let pump = Pump::new(terms).map_err(|_| libc::EINVAL)?;
        let wire = Self {
            pair,
            id,
            completions,
            inner: Guarded::new(Inner {
                pump,
                places: Vec::new(),
                unmarked: 0,
                unmarked_bytes: 0,
                slabs: Slabs::default(),
            }),
            small,
            domain,
            near,
            far,
            peer: Hello { place: 0, key: 0 },
            immediate: device.limits.immediate,
            on_step,
            again: AtomicBool::new(false),
        };
        for slot in 0..u64::from(RECEIVES) {
            wire.receive(slot)?;
        }
        Ok(wire)
    }

    /// For the peer.
    #[must_use]
    pub fn hello(&self) -> Hello {
        Hello {
            place: self.small.at as u64,
            key: self.small.slots.remote_key(),
        }
    }

    /// The peer's, before the first message.
    pub fn heard(&mut self, hello: Hello) {
        self.peer = hello;
    }

    /// Both ends of its arena, the program's first.
    #[must_use]
    pub fn links(&self) -> [&'static Link; 2] {
        [self.near, self.far]
    }

    /// The connection.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Readable after [`arm`](Self::arm) when there is something to drive.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.completions.descriptor()
    }

    fn receive(&self, slot: u64) -> Result<(), Errno> {
        let into = (!self.immediate).then(|| (self.small.said(slot), self.small.said.local_key()));
        // SAFETY: the buffer lives as long as the queue pair.
        unsafe { self.pair.receive(slot, into) }
    }

    /// Gives a stream out at this end: what the peer needs to open its own.
    ///
    /// # Errors
    /// ENOBUFS: no more streams or ring memory; the device's.
    pub fn offer(&self, ring_len: u32, owner: usize) -> Result<Offered, Errno> {
        let full = libc::ENOBUFS;
        let stream = self.near.give_stream(ring_len, owner).ok_or(full)?;
        let offered = self.place_ring(stream);
        if offered.is_err() {
            self.near.leave_stream(stream);
        }
        offered
    }

    fn place_ring(&self, stream: u32) -> Result<Offered, Errno> {
        let mut inner = self.inner.lock().ok_or(libc::ENOBUFS)?;
        let (place, len) = self.place(&mut inner, self.near, stream, Use::Lent)?;
        Ok(Offered {
            stream: stream as u16,
            ring: Lent {
                place: place.at as u64,
                key: place.remote_key,
                len,
            },
        })
    }

    /// Where an end of the arena has its ring of a stream, registered, and how long that is.
    fn place(
        &self,
        inner: &mut Inner,
        link: &'static Link,
        stream: u32,
        for_what: Use,
    ) -> Result<(Place, u32), Errno> {
        let full = libc::ENOBUFS;
        let arena = link.arena().ok_or(full)?;
        let lent = link.lent_for(stream).ok_or(full)?;
        let ring = arena.ring(link.side(), lent.at, lent.len).ok_or(full)?;
        // SAFETY: the arena of a link of this process with itself is never unmapped.
        let place = unsafe { inner.slabs.place(&self.domain, ring, for_what) }?;
        Ok((place, lent.len))
    }

    /// Opens a stream that was offered here and whose other end the peer has offered.
    ///
    /// # Errors
    /// ENOBUFS: no ring memory; EPROTO: the peer's offer cannot be; the device's.
    pub fn open(
        &self,
        ours: Offered,
        theirs: Offered,
        (role, nonce): (Role, Nonce),
        tcp_read: u64,
    ) -> Result<(), Errno> {
        let index = u32::from(ours.stream);
        if !self.far.join_stream(index, theirs.ring.len, 1) {
            return Err(libc::ENOBUFS);
        }
        let opened = self.open_joined(ours, theirs, (role, nonce), tcp_read);
        if opened.is_err() {
            self.far.leave_stream(index);
        }
        opened
    }

    fn open_joined(
        &self,
        ours: Offered,
        theirs: Offered,
        (role, nonce): (Role, Nonce),
        tcp_read: u64,
    ) -> Result<(), Errno> {
        let index = u32::from(ours.stream);
        let mut inner = self.inner.lock().ok_or(libc::ENOBUFS)?;
        let (staging, staging_len) = self.place(&mut inner, self.far, index, Use::Staging)?;
        let opening = Opening {
            role,
            nonce,
            theirs: theirs.stream,
            tcp_read,
            ring_len: ours.ring.len,
            staging_len,
            lent: theirs.ring,
        };
        inner
            .pump
            .open(ours.stream, &opening)
            .map_err(|_| libc::EPROTO)?;
        let at = usize::from(ours.stream);
        if inner.places.len() <= at {
            inner.places.resize(at + 1, None);
        }
        if let Some(place) = inner.places.get_mut(at) {
            *place = Some(Places {
                staging,
                staging_len,
                tail: 0,
                head: 0,
            });
        }
        Ok(())
    }

    /// Runs `f` on the pump, then drives the wire. `None` in a handler that interrupted this thread's own driving.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn with<R>(&self, f: impl FnOnce(&mut Pump) -> R) -> Result<Option<R>, Lost> {
        let Some(mut inner) = self.inner.lock() else {
            return Ok(None);
        };
        let done = f(&mut inner.pump);
        self.work(&mut inner)?;
        Ok(Some(done))
    }

    /// The program has put bytes into the stream's ring, or taken some out.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn moved(&self, stream: u16) -> Result<(), Lost> {
        let Some(mut inner) = self.inner.lock() else {
            // This thread's own, in a handler: it looks at all of them when it is through.
            self.again.store(true, Ordering::SeqCst);
            return Ok(());
        };
        self.look(&mut inner, stream)?;
        self.work(&mut inner)
    }

    /// Takes what has come, and posts what may go.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn drive(&self) -> Result<(), Lost> {
        let Some(mut inner) = self.inner.lock() else {
            return Ok(());
        };
        self.work(&mut inner)
    }

    /// Before a sleep: what comes from now on makes the descriptor readable.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn arm(&self) -> Result<(), Lost> {
        while self.completions.take_event().is_ok() {}
        self.completions.arm().map_err(|_| Lost::Device(0))?;
        self.drive()
    }

    fn directions(&self, stream: u16) -> Option<[&'static Direction; 2]> {
        let stream = self.near.stream(u32::from(stream))?;
        // SAFETY: the arena of a link of this process with itself is never unmapped.
        let [out, into] = unsafe { &*ptr::from_ref(&stream.dir) };
        Some([out, into])
    }

    /// What the program did with a stream.
    fn look(&self, inner: &mut Inner, stream: u16) -> Result<(), Lost> {
        let Some([out, into]) = self.directions(stream) else {
            return Ok(());
        };
        inner
            .pump
            .on_tail(stream, Seq::new(out.tx.tail.read().offset));
        inner
            .pump
            .on_head(stream, Seq::new(into.rx.head.read().offset))?;
        Ok(())
    }

    fn work(&self, inner: &mut Inner) -> Result<(), Lost> {
        loop {
            self.take(inner)?;
            self.post(inner)?;
            if !self.again.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            for stream in 0..inner.places.len() {
                if inner.places.get(stream).is_some_and(Option::is_some) {
                    self.look(inner, stream as u16)?;
                }
            }
        }
    }

    fn take(&self, inner: &mut Inner) -> Result<(), Lost> {
        let mut lost = None;
        let polled = self.completions.poll(|_, news| {
            if lost.is_none() {
                lost = self.news(inner, news).err();
            }
        });
        match (polled, lost) {
            (_, Some(lost)) => Err(lost),
            (Err(_), None) => Err(Lost::Device(0)),
            (Ok(_), None) => Ok(()),
        }
    }

    fn news(&self, inner: &mut Inner, news: News) -> Result<(), Lost> {
        match news {
            News::Failed { status } => Err(Lost::Device(status)),
            News::Done { mark } => {
                let Inner { pump, places, .. } = inner;
                // The streams are looked at behind: at most as many as messages.
                let mut done = [u16::MAX; SENDS as usize];
                let mut n = 0;
                pump.on_done(mark as usize, |stream| {
                    if let Some(place) = done.get_mut(n) {
                        *place = stream;
                        n += 1;
                    }
                })?;
                for stream in done.iter().take(n) {
                    self.free(pump, places, *stream)?;
                }
                Ok(())
            }
            News::Came { slot, said } => {
                // SAFETY: the receive is used up, so the device is through with its buffer; a copy.
                let said = said.unwrap_or_else(|| unsafe { self.small.said(slot).read_volatile() });
                self.receive(slot).map_err(|_| Lost::Device(0))?;
                let Inner { pump, places, .. } = inner;
                let came = pump.on_came(said.word, said.len, |slot| {
                    // SAFETY: inside the mapping; a copy, since the peer can write there at any moment.
                    unsafe { self.small.slot(slot).read_volatile() }
                })?;
                match came {
                    Came::Bytes(stream, to) => self.bring(places, stream, to.value()),
                    Came::Credit(stream) => self.free(pump, places, stream)?,
                    Came::Step(stream) => (self.on_step)(pump, stream),
                    Came::Nothing => {}
                }
                Ok(())
            }
        }
    }

    /// Bytes have come: as a writer tells it.
    fn bring(&self, places: &mut [Option<Places>], stream: u16, to: u64) {
        let place = places.get_mut(usize::from(stream)).and_then(Option::as_mut);
        let (Some(place), Some([_, into])) = (place, self.directions(stream)) else {
            return;
        };
        if into.tx.tail.advance(place.tail, to).is_ok() {
            place.tail = to;
            fence(Ordering::SeqCst);
            let waiters = into.rx_wishes.waiters.load(Ordering::Relaxed);
            crate::sockets::wake::own(self.near, waiters, u32::from(stream));
        }
    }

    /// The staging ring is free up to what must be kept: as a reader tells it.
    fn free(
        &self,
        pump: &mut Pump,
        places: &mut [Option<Places>],
        stream: u16,
    ) -> Result<(), Lost> {
        let place = places.get_mut(usize::from(stream)).and_then(Option::as_mut);
        let (Some(place), Some([out, _])) = (place, self.directions(stream)) else {
            return Ok(());
        };
        let to = pump.kept(stream).value();
        if to > place.head && out.rx.head.consume(0, place.head, to).is_ok() {
            place.head = to;
            fence(Ordering::SeqCst);
            let waiters = out.tx_wishes.waiters.load(Ordering::Relaxed);
            crate::sockets::wake::own(self.near, waiters, u32::from(stream));
        }
        Ok(())
    }

    fn post(&self, inner: &mut Inner) -> Result<(), Lost> {
        let nothing = Post {
            from: (ptr::null(), 0, 0),
            to: (0, 0),
            word: 0,
            mark: None,
        };
        loop {
            let mut batch = [nothing; BATCH];
            let mut n = 0;
            while n < BATCH
                && let Some(message) = inner.pump.poll()
            {
                if let Some(post) = batch.get_mut(n) {
                    *post = self.describe(inner, message);
                    n += 1;
                }
            }
            let Some(posts) = batch.get(..n).filter(|posts| !posts.is_empty()) else {
                return Ok(());
            };
            // SAFETY: staging bytes stay until completed and credited, control slots until the peer's receive is back.
            unsafe { self.pair.post(posts) }.map_err(|_| Lost::Device(0))?;
        }
    }

    fn describe(&self, inner: &mut Inner, Message { what, word }: Message) -> Post {
        let (from, to) = match what {
            What::Bytes {
                stream,
                from,
                len,
                to,
            } => {
                let place = inner.places.get(usize::from(stream)).copied().flatten();
                let at = place.map_or(ptr::null(), |place| {
                    let at = from.value() & u64::from(place.staging_len - 1);
                    place.staging.at.cast_const().wrapping_add(at as usize)
                });
                let key = place.map_or(0, |place| place.staging.local_key);
                ((at, len, key), to)
            }
            What::Control { slot, bytes } => {
                let out = self.small.out(slot);
                // SAFETY: inside the mapping; the message that was here is with the peer.
                unsafe { out.write(bytes) };
                let slot_at = u64::from(slot) * CONTROL_LEN as u64;
                // The peer's word for where they are; what its key does not open, its device refuses.
                let to = self.peer.place.wrapping_add(slot_at);
                let from = (
                    out.cast_const().cast(),
                    CONTROL_LEN as u32,
                    self.small.out.local_key(),
                );
                (from, (to, self.peer.key))
            }
            What::Count => ((ptr::null(), 0, 0), (self.peer.place, self.peer.key)),
        };
        inner.unmarked += 1;
        inner.unmarked_bytes += from.1 as usize;
        let full = inner.unmarked >= MARK_MESSAGES || inner.unmarked_bytes >= MARK_BYTES;
        let mark = full.then(|| {
            inner.unmarked_bytes = 0;
            core::mem::take(&mut inner.unmarked) as u64
        });
        Post {
            from,
            to,
            word,
            mark,
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the queue pair is gone, and what is registered stays a region without it.
        unsafe { sys::unmap(self.at, SMALL_LEN) };
    }
}
