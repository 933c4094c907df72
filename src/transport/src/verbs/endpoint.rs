//! A link's queue pair, its local arena, and the pump between them. The pump sends what the program
//! has put into a ring, and announces what the peer's device has written, as a writer within the
//! host would.
//!
//! The program's side of the arena is the [`Link`] `near`; the pump plays the other side, `far`. A
//! thread in a hook of a stream drives the endpoint; while none is, the control thread does. Work
//! that needs a socket's locks, and so cannot be done in the middle of a send or receive, is left
//! to the control thread as a [`Note`].
//!
//! The memory of an `Endpoint` stays an `Endpoint` for the life of the process, as that of its
//! links does.

pub use super::endpoint_state::Offered;
pub use super::terms::{Hello, Lost, Note};

use super::control_memory::ControlMemory;
use super::direct_qp::DirectQps;
use super::endpoint_state::EndpointState;
use super::memory::Slabs;
use super::pace::Written;
use super::pages::Pages;
use super::queue::{Interest, Queue, Share};
use super::terms::{BATCH, FENCE, RECEIVES, SENDS, SHAPE, TICK_NS};
use super::users;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use sluice_fabric::layout::Direction;
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Device, Domain, Trouble};
use sluice_fabric::verbs::queue::News;
use sluice_runtime::config::{Level, log};
use sluice_stream::pump::{Came, Pump, Terms};
use sluice_stream::{Mode, Seq};
use std::collections::VecDeque;
use std::sync::Arc;

/// Greatest length of a message: longer ones are not faster, and delay the messages after them.
const MESSAGE_LEN: u32 = 256 << 10;

/// See the [module](self).
#[derive(Debug)]
pub struct Endpoint {
    inner: Guarded<Option<EndpointState>>,
    near: AtomicPtr<Link>,
    far: AtomicPtr<Link>,
    /// A signal handler wanted to drive while this thread did.
    again: AtomicBool,
    /// The queue of its completions, while it is in service.
    queue: AtomicPtr<Queue>,
    /// In the queue's list of interested endpoints. Written under the queue's lock.
    pub(crate) listed: AtomicBool,
    /// Why the control thread must hear of completions though no thread sleeps: the pump waits for
    /// something; that thread expects something. `dead`: the link is lost.
    busy: AtomicBool,
    expected: AtomicBool,
    dead: AtomicBool,
    /// Has the control thread look: there are notes, a tick must be scheduled, a stream starves, or
    /// the link is lost.
    alarm: fn(),
}

impl Endpoint {
    /// One that is not in service. `alarm` is called when the control thread must look.
    #[must_use]
    pub const fn new(alarm: fn()) -> Self {
        Self {
            inner: Guarded::new(None),
            near: AtomicPtr::new(ptr::null_mut()),
            far: AtomicPtr::new(ptr::null_mut()),
            again: AtomicBool::new(false),
            queue: AtomicPtr::new(ptr::null_mut()),
            listed: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            expected: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            alarm,
        }
    }

    /// Puts an endpoint into service, for an id whose route is resolved or that came with a
    /// connection request. `near` and `far` are both ends of a link of this process with itself.
    /// Posts the receives, and returns what the peer must know.
    ///
    /// # Errors
    /// The device's; EBUSY: it is in use.
    pub fn begin(&'static self, id: Id, [near, far]: [&'static Link; 2]) -> Result<Hello, Errno> {
        let device = id.device()?;
        let domain = Domain::new(device)?;
        let share = Share::of(device)?;
        let control = ControlMemory::new(&domain)?;
        let pair = share.pair(&id, &domain, SHAPE)?;
        let terms = Terms {
            ours: RECEIVES,
            theirs: RECEIVES,
            sends: SENDS,
            message_len: MESSAGE_LEN,
            mode: super::mode::mode(),
            direct_min: super::mode::least(),
            proves: !device.limits.immediate,
        };
        let inner = EndpointState {
            direct_qps: DirectQps::default(),
            pair,
            id,
            share,
            endpoint: self,
            slabs: Slabs::default(),
            pages: Pages::default(),
            control,
            domain: Arc::new(domain),
            pump: Pump::new(terms).map_err(|_| libc::EINVAL)?,
            complete: 0,
            lent: Vec::new(),
            reserved: Vec::new(),
            staging: Vec::new(),
            places: Vec::new(),
            peer: Hello { place: 0, key: 0 },
            immediate: device.limits.immediate,
            rest: false,
            unmarked: 0,
            unmarked_bytes: 0,
            marks: 0,
            marked: 0,
            tick_ns: 0,
            looked: (0, 0),
            stuck: 0,
            notes: VecDeque::new(),
            lost: None,
        };
        for flag in [&self.busy, &self.expected, &self.dead] {
            flag.store(false, Ordering::Relaxed);
        }
        let hello = Hello {
            place: inner.control.slots.first(),
            key: inner.control.slots.remote_key(),
        };
        let mut place = self.inner.lock().ok_or(libc::EBUSY)?;
        if place.is_some() {
            return Err(libc::EBUSY);
        }
        self.near
            .store(ptr::from_ref(near).cast_mut(), Ordering::Release);
        self.far
            .store(ptr::from_ref(far).cast_mut(), Ordering::Release);
        let inner = place.insert(inner);
        let number = inner.pair.number();
        let begun = inner.share.enter(number, self).and_then(|()| {
            let mut slots = 0..u64::from(RECEIVES);
            slots.try_for_each(|slot| inner.receive(slot))
        });
        let refused = if begun.is_err() { place.take() } else { None };
        drop(place);
        drop(refused);
        begun.map(|()| hello)
    }

    /// Takes the peer's hello, before the first message.
    pub fn heard(&self, hello: Hello) {
        self.inside(|inner| inner.peer = hello);
    }

    /// True in a handler that interrupted this thread's own driving. The endpoint is in the middle
    /// of it then, and nobody drives it until the handler returns.
    pub fn is_interrupted(&self) -> bool {
        self.inner.lock().is_none()
    }

    /// Takes the endpoint out of service: destroys its queue pair and regions. Its streams are
    /// over.
    pub fn end(&self) {
        let inner = self.inner.lock().and_then(|mut inner| inner.take());
        // Destroying it waits for the kernel, so not under the lock.
        drop(inner);
    }

    /// Both ends of its arena, the program's first. `None` if it was never in service.
    #[must_use]
    pub fn links(&self) -> Option<[&'static Link; 2]> {
        // SAFETY: null, or a link, and links are leaked.
        let link = |at: &AtomicPtr<Link>| unsafe { at.load(Ordering::Acquire).as_ref() };
        Some([link(&self.near)?, link(&self.far)?])
    }

    /// Runs `f` under the inner lock. `None`: the endpoint is not in service, or this is a handler
    /// that interrupted a holder of the lock.
    pub fn inside<R>(&self, f: impl FnOnce(&mut EndpointState) -> R) -> Option<R> {
        let mut inner = self.inner.lock()?;
        inner.as_mut().map(f)
    }

    /// The connection is established.
    pub fn stands(&self) {
        self.inside(|inner| {
            if inner.immediate {
                inner.pair.be_ready_soon();
            }
        });
    }

    /// True if a device's asynchronous event is about this endpoint.
    pub fn is_met_by(&self, device: Device, trouble: Trouble) -> bool {
        let met = self.inside(|inner| match trouble {
            Trouble::Pair(number) => inner.is_on(device) && inner.pair.number() == number,
            Trouble::Completions(address) => inner.share.address() == address,
            Trouble::Device => inner.is_on(device),
            Trouble::Port | Trouble::Nothing => false,
        });
        met == Some(true)
    }

    /// Probes whether the peer still answers, if nothing else is under way.
    pub fn probe(&self) {
        self.with(Pump::probe);
    }

    /// Runs `f` on the connection.
    pub fn with_id<R>(&self, f: impl FnOnce(&Id) -> R) -> Option<R> {
        self.inside(|inner| f(&inner.id))
    }

    /// After [`arm`](Self::arm): readable when any link of the device has something to drive.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        self.queue()?.descriptor()
    }

    /// The queue of its completions, while it is in service.
    pub fn queue(&self) -> Option<&'static Queue> {
        // SAFETY: null, or a queue, and queues are leaked.
        unsafe { self.queue.load(Ordering::Acquire).as_ref() }
    }

    /// See [`queue`](Self::queue). Called under the queue's lock.
    pub(crate) fn set_queue(&self, queue: Option<&'static Queue>) {
        let at = queue.map_or(ptr::null_mut(), |queue| ptr::from_ref(queue).cast_mut());
        self.queue.store(at, Ordering::Release);
    }

    /// Whether the descriptor must tell of the next completion, for a sleeper or for the control
    /// thread.
    pub(crate) fn interest(&self) -> Interest {
        if self.dead.load(Ordering::Relaxed) {
            return Interest::None;
        }
        let flags = [&self.busy, &self.expected];
        let asked = flags.iter().any(|flag| flag.load(Ordering::SeqCst));
        match self.links() {
            _ if asked => Interest::Always,
            Some([near, _]) if near.is_anybody_asleep() => Interest::Always,
            Some([near, _]) if !near.has_waiters() => Interest::IfUnpolled,
            _ => Interest::None,
        }
    }

    /// Why the link is lost, if it is.
    #[must_use]
    pub fn is_lost(&self) -> Option<Lost> {
        self.inside(|inner| inner.lost).flatten()
    }

    /// Takes the next note for the control thread.
    pub fn note(&self) -> Option<Note> {
        self.inside(|inner| inner.notes.pop_front()).flatten()
    }

    /// The streams of this end.
    pub fn streams(&self) -> Vec<u16> {
        self.inside(|inner| inner.pump.streams().collect())
            .unwrap_or_default()
    }

    /// Runs `f` on the pump, then drives the endpoint. `None`: it is not in service, or this is a
    /// handler that interrupted this thread's own driving.
    pub fn with<R>(&self, f: impl FnOnce(&mut Pump) -> R) -> Option<R> {
        let mut done = None;
        self.work(true, |_, inner| {
            done = Some(f(&mut inner.pump));
            Ok(())
        });
        done
    }

    /// As [`with`](Self::with), but the pump first hears of the program's changes to the stream's
    /// cursors, and the cursors are updated after `f`.
    pub fn with_stream<R>(&self, stream: u16, f: impl FnOnce(&mut Pump) -> R) -> Option<R> {
        let mut done = None;
        self.work(true, |endpoint, inner| {
            endpoint.look(inner, stream)?;
            done = Some(f(&mut inner.pump));
            endpoint.bring(inner, stream);
            Ok(())
        });
        done
    }

    /// The program has put bytes into the stream's ring, or taken some out.
    pub fn moved(&self, stream: u16) {
        self.work(true, |endpoint, inner| endpoint.look(inner, stream));
    }

    /// Handles completions, and posts what can be sent.
    pub fn drive(&self) {
        self.work(true, |_, _| Ok(()));
    }

    /// As [`drive`](Self::drive), but without polling the device: for completions that a poll for
    /// another endpoint has put into the inbox.
    pub(crate) fn drive_told(&self) {
        self.work(false, |_, _| Ok(()));
    }

    /// Loses the link for this reason: its streams go on on TCP.
    pub fn lose(&self, why: Lost) {
        self.work(true, |_, _| Err(why));
    }

    /// Before a sleep: later completions make the descriptor readable. Edge-triggered: it may be
    /// readable already.
    pub fn arm(&self) {
        self.work(true, |_, inner| {
            inner.share.queue.arm(inner.endpoint);
            Ok(())
        });
    }

    /// By the control thread, when it is through with its work: has it hear of the next completion.
    /// Not where threads of the program will hear, unless something is under way or `expected`.
    pub fn watch(&self, expected: bool) {
        let expected_before = self.expected.swap(expected, Ordering::SeqCst);
        let interested = self.inside(|inner| {
            (self.interest() != Interest::None).then_some((inner.endpoint, inner.share.queue))
        });
        if let Some((endpoint, queue)) = interested.flatten()
            && (expected && !expected_before || !self.listed.load(Ordering::SeqCst))
        {
            queue.list(endpoint);
            queue.settle();
        }
    }

    /// Takes old events out of the descriptor, so that only new completions make it readable. Then
    /// as [`arm`](Self::arm).
    pub fn drain_events(&self) {
        if let Some(queue) = self.queue() {
            queue.drain_events();
        }
        self.arm();
    }

    /// Looks whether posted work requests complete, if that is due. Returns the ns until the next
    /// look.
    pub fn tick(&self, now: u64) -> Option<u64> {
        let due = self.inside(|inner| inner.tick_ns).filter(|due| *due != 0)?;
        if now < due {
            return Some(due - now);
        }
        let mut next = None;
        self.work(true, |_, inner| {
            next = inner.tick(now)?;
            Ok(())
        });
        next
    }

    /// The stream's directions: the one that this end writes, and the one that it reads.
    pub fn directions(&self, stream: u16) -> Option<[&'static Direction; 2]> {
        let [near, _] = self.links()?;
        let stream = near.stream(u32::from(stream))?;
        // SAFETY: the arena stays mapped while the link counts a stream, and the stream of `far`
        // counts as long as the pump has it.
        let [out, into] = unsafe { &*ptr::from_ref(&stream.dir) };
        Some([out, into])
    }

    /// Runs `first`, then handles completions (if `polls`, also from the device) and posts what can
    /// be sent. Endpoints whose completions this poll has found are driven afterwards: here if
    /// `polls`, else by the caller of [`drive_told`](Self::drive_told).
    pub fn work(
        &self,
        polls: bool,
        first: impl FnOnce(&Self, &mut EndpointState) -> Result<(), Lost>,
    ) {
        let Some(mut guard) = self.inner.lock() else {
            // A handler that interrupted this thread, which looks at all streams afterwards.
            self.again.store(true, Ordering::SeqCst);
            return;
        };
        let Some(inner) = guard.as_mut() else { return };
        let before = (inner.notes.len(), inner.lost.is_some());
        let mut done = first(self, inner);
        if inner.lost.is_none() {
            done = done.and_then(|()| self.turn(inner, polls));
            if let Err(lost) = done {
                self.fail(inner, lost);
            }
        }
        let mut alarm = inner.notes.len() > before.0 || inner.lost.is_some() && !before.1;
        let busy = inner.lost.is_none() && inner.pump.is_busy();
        if inner.tick_ns == 0 && inner.lost.is_none() && inner.is_outstanding() {
            inner.tick_ns = sys::now_ns() + TICK_NS;
            inner.looked = (inner.marks, inner.marked);
            alarm = true;
        }
        alarm |= inner.starts_to_starve();
        let (endpoint, queue) = (inner.endpoint, inner.share.queue);
        let mut rest = core::mem::take(&mut inner.rest);
        let was_busy = self.busy.load(Ordering::Relaxed);
        if was_busy != busy {
            self.busy.store(busy, Ordering::SeqCst);
        }
        drop(guard);
        if busy && !(was_busy && self.listed.load(Ordering::SeqCst)) {
            queue.list(endpoint);
            rest = true;
        }
        if alarm {
            (self.alarm)();
        }
        // A handler may have set it after the last look in `turn`.
        if self.again.load(Ordering::SeqCst) {
            if polls {
                self.drive();
            } else {
                self.drive_told();
            }
        }
        if polls && rest {
            queue.settle();
        }
    }

    fn turn(&self, inner: &mut EndpointState, polls: bool) -> Result<(), Lost> {
        loop {
            self.take(inner, polls)?;
            self.take_direct(inner)?;
            if inner.pump.is_draining() {
                // An empty inbox is not enough: only a poll of the device shows that no more came.
                if !polls {
                    self.take(inner, true)?;
                    self.take_direct(inner)?;
                }
                inner.pump.on_emptied();
            }
            inner.post()?;
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

    /// Ends the link. Messages that have come still count, unless the peer broke the protocol.
    fn fail(&self, inner: &mut EndpointState, lost: Lost) {
        inner.pair.fail();
        inner.lost = Some(lost);
        // After a breach of the protocol nothing more of the peer is believed.
        if !matches!(lost, Lost::Peer(_)) {
            let _ = self.take(inner, true);
            let _ = self.take_direct(inner);
        }
        inner.share.shut();
        self.dead.store(true, Ordering::Relaxed);
        inner.pump.on_lost();
        for stream in 0..inner.places.len() {
            self.bring(inner, stream as u16);
        }
        // The peer's messages that it has left these will not come any more.
        while let Some(stream) = inner.pump.take_left() {
            self.forget(stream);
        }
    }

    /// Tells the pump of the program's changes to a stream's cursors.
    fn look(&self, inner: &mut EndpointState, stream: u16) -> Result<(), Lost> {
        let Some([out, into]) = self.directions(stream) else {
            return Ok(());
        };
        let Some(Some(place)) = inner.places.get_mut(usize::from(stream)) else {
            return Ok(());
        };
        let tail = Seq::new(out.tx.tail.read().offset);
        let head = Seq::new(into.rx.head.read().offset);
        let (read, ring_len) = (head.value(), place.lent_len);
        if place.reader.on_read(read, ring_len, sys::now_ns) {
            inner.notes.push_back(Note::RingShort(stream));
        }
        inner.pump.on_tail(stream, tail);
        inner.pump.on_head(stream, head)?;
        Ok(())
    }

    fn take(&self, inner: &mut EndpointState, polls: bool) -> Result<(), Lost> {
        let mut wrong = None;
        loop {
            let mut batch = [News::Failed { status: 0 }; BATCH];
            let taken = inner.share.queue.take(&inner.share, &mut batch, polls);
            inner.rest |= taken.rest;
            for news in batch.iter().take(taken.count) {
                // After a failure only messages that had come before count.
                let fine = wrong.is_none() && inner.lost.is_none();
                let counts = fine || matches!(news, News::Came { .. });
                if counts && !matches!(wrong, Some(Lost::Peer(_))) {
                    wrong = wrong.or(self.news(inner, *news).err());
                }
            }
            match wrong {
                _ if taken.more => {}
                Some(lost) => return Err(lost),
                None if taken.broken => return Err(Lost::Device(0)),
                None => return Ok(()),
            }
        }
    }

    fn take_direct(&self, inner: &mut EndpointState) -> Result<(), Lost> {
        inner.take_direct_qp(
            |inner, stream| self.free(inner, stream),
            |inner, stream| self.bring(inner, stream),
        )
    }

    fn news(&self, inner: &mut EndpointState, news: News) -> Result<(), Lost> {
        match news {
            News::Failed { status } => Err(Lost::Device(status)),
            News::Done { mark: FENCE } => {
                inner.marked += 1;
                let mut ended = Vec::new();
                inner.pump.on_fenced(|stream| ended.push(stream))?;
                inner.notes.extend(ended.into_iter().map(Note::Stream));
                Ok(())
            }
            News::Done { mark } => {
                inner.marked += 1;
                inner.complete += mark;
                inner.slabs.completed(inner.complete);
                inner.end_pages();
                // The streams are looked at after the call; at most one for each message.
                let mut done = [u16::MAX; SENDS as usize];
                let mut n = 0;
                inner.pump.on_done(mark as usize, |stream| {
                    if let Some(place) = done.get_mut(n) {
                        *place = stream;
                        n += 1;
                    }
                })?;
                for stream in done.iter().take(n) {
                    self.free(inner, *stream);
                    inner.note_record(*stream);
                }
                Ok(())
            }
            News::Came { slot, said } => {
                // SAFETY: the receive has completed, so the device has no use for its buffer.
                let said =
                    said.unwrap_or_else(|| unsafe { inner.control.said(slot).read_volatile() });
                if inner.lost.is_none() {
                    inner.receive(slot).map_err(|_| Lost::Device(0))?;
                }
                let EndpointState { pump, control, .. } = inner;
                let came = pump.on_came(said.word, said.len, |slot| {
                    // SAFETY: `slot` returns an aligned place in the mapping. Copied, since the
                    // peer can write there at any moment.
                    unsafe { control.slot(slot).read_volatile() }
                })?;
                match came {
                    Came::Bytes(stream, _) | Came::Direct(stream, _) => self.bring(inner, stream),
                    Came::Return(stream) => self.wake_readers(stream),
                    Came::Credit(stream) => {
                        self.free(inner, stream);
                        inner.note_record(stream);
                        if super::mode::mode() == Mode::Direct
                            && let (Some([out, _]), Some([near, _])) =
                                (self.directions(stream), self.links())
                        {
                            // Writers may wait for a reader's buffer, and there is one.
                            wake_writers(near, out, stream);
                        }
                    }
                    Came::Step(stream) => inner.notes.push_back(Note::Stream(stream)),
                    Came::Meeting(meeting) => inner.notes.push_back(Note::Meeting(meeting)),
                    Came::Free(stream) => {
                        log(
                            Level::Debug,
                            format_args!("stream {stream} was left by the peer, too"),
                        );
                        inner.give_back(stream);
                        self.forget(stream);
                    }
                    Came::DirectQp(direct_qp) => {
                        inner.notes.push_back(Note::DirectQp(Some(direct_qp)))
                    }
                    Came::Nothing => {}
                }
                Ok(())
            }
        }
    }

    /// Moves the tail of a stream to what has come by the link, and wakes the reader.
    fn bring(&self, inner: &mut EndpointState, stream: u16) {
        let Some(to) = inner.pump.transit(stream).map(|t| t.link_end().value()) else {
            return;
        };
        let place = inner.places.get_mut(usize::from(stream));
        let (Some(Some(place)), Some([_, into]), Some([near, _])) =
            (place, self.directions(stream), self.links())
        else {
            return;
        };
        // Backwards, under the reader's lock: TCP brings the unread bytes again.
        if to < place.tail {
            users::with(|users| (users.owes)(near, u32::from(stream)));
        }
        if to != place.tail && into.tx.tail.advance(place.tail, to).is_ok() {
            place.tail = to;
            self.wake_readers(stream);
        }
    }

    /// Wakes waiting readers, to look again.
    fn wake_readers(&self, stream: u16) {
        if let (Some([_, into]), Some([near, _])) = (self.directions(stream), self.links()) {
            fence(Ordering::SeqCst);
            let waiters = into.rx_wishes.waiters.load(Ordering::Relaxed);
            users::with(|users| (users.wake)(near, waiters, u32::from(stream)));
        }
    }

    /// Moves the head of the staging ring to the first byte that must be kept, and wakes writers.
    pub(crate) fn free(&self, inner: &mut EndpointState, stream: u16) {
        let to = inner.pump.kept(stream).value();
        let completed = inner.pump.completed(stream).value();
        let place = inner.places.get_mut(usize::from(stream));
        let (Some(Some(place)), Some([out, _]), Some([near, _])) =
            (place, self.directions(stream), self.links())
        else {
            return;
        };
        if to > place.head && out.rx.head.consume(0, place.head, to).is_ok() {
            if place.writer.compares() {
                let at = Written {
                    tail: out.tx.tail.read().offset,
                    // iWARP completes a message that has not come to the peer.
                    completed: if inner.immediate { completed } else { to },
                    credited: [place.head, to],
                    ring_len: place.staging_len,
                };
                if place.writer.on_credit(at, sys::now_ns()) {
                    inner.notes.push_back(Note::Slower(stream));
                }
            }
            place.head = to;
            inner.release_pages(stream, to);
            fence(Ordering::SeqCst);
            wake_writers(near, out, stream);
        }
    }
}

/// Wakes waiting writers, to look again.
fn wake_writers(near: &'static Link, out: &Direction, stream: u16) {
    let waiters = out.tx_wishes.waiters.load(Ordering::Relaxed);
    users::with(|users| (users.wake)(near, waiters, u32::from(stream)));
}

/// The endpoint that plays the other end of the link.
pub fn endpoint_of(link: &Link) -> Option<&'static Endpoint> {
    // SAFETY: 0, or the address of an endpoint, whose memory stays one for the life of the process.
    unsafe { (link.keeper() as *const Endpoint).as_ref() }
}
