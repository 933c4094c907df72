//! A link's queue pair, its local arena, and the pump between them: what the program has put into a
//! ring goes out, and what the peer's device has written is told as a writer within the host would
//! tell it.
//!
//! The program's side of the arena is [`Link`] `near`; the pump plays the other, `far`. A thread
//! in a hook of such a stream drives the endpoint; while nobody is, the control thread does. What
//! neither may do in the middle of a send or a receive, since it takes a socket's locks, is left as
//! a [`Note`] for that thread.
//!
//! The memory of an `Endpoint` is an `Endpoint` for the life of the process, as that of its links.

pub use super::endpoint_state::Offered;
pub use super::terms::{Hello, Lost, Note};

use super::control_memory::ControlMemory;
use super::direct_qp::Lanes;
use super::endpoint_state::EndpointState;
use super::memory::Slabs;
use super::queue::{Keen, Queue, Share};
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

/// Bytes of one message at most: more does not make it faster, and others wait after it.
const MESSAGE_LEN: u32 = 256 << 10;

/// See the [module](self).
#[derive(Debug)]
pub struct Endpoint {
    inner: Guarded<Option<EndpointState>>,
    near: AtomicPtr<Link>,
    far: AtomicPtr<Link>,
    /// Somebody wanted to drive while another did.
    again: AtomicBool,
    /// By which its news come, while it is in service.
    queue: AtomicPtr<Queue>,
    /// In the queue's list of keen endpoints: written under its lock.
    pub(crate) listed: AtomicBool,
    /// Why the control thread may have to hear of what comes though nobody sleeps for it: the pump
    /// waits for something; the thread itself does. Not of a lost one.
    busy: AtomicBool,
    expected: AtomicBool,
    dead: AtomicBool,
    /// There are notes, a look is to be scheduled, or the link is lost: has the control thread
    /// look.
    alarm: fn(),
}

impl Endpoint {
    /// One that is not in use; `alarm` is called when there is something for the control thread.
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

    /// Puts the endpoint of an id that is routed, or was asked for, into service; `near` and `far`
    /// are both ends of a link of this process with itself. Receives are posted; the peer is to be
    /// told the hello.
    ///
    /// # Errors
    /// The device's; EBUSY: it is in use.
    pub fn begin(&'static self, id: Id, [near, far]: [&'static Link; 2]) -> Result<Hello, Errno> {
        let device = id.device()?;
        let domain = Domain::new(device)?;
        let share = Share::of(device)?;
        let small = ControlMemory::new(&domain)?;
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
            lanes: Lanes::default(),
            pair,
            id,
            share,
            endpoint: self,
            slabs: Slabs::default(),
            small,
            domain,
            pump: Pump::new(terms).map_err(|_| libc::EINVAL)?,
            complete: 0,
            lent: Vec::new(),
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
            place: inner.small.slots.first(),
            key: inner.small.slots.remote_key(),
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

    /// How the peer is reached, before the first message.
    pub fn heard(&self, hello: Hello) {
        self.inside(|inner| inner.peer = hello);
    }

    /// Is this a handler that interrupted this thread's own driving? It finds the endpoint as it
    /// stands, and nobody drives it meanwhile.
    pub fn is_interrupted(&self) -> bool {
        self.inner.lock().is_none()
    }

    /// What the device holds of it is given back, and nothing more of it is told. Its streams are
    /// over.
    pub fn end(&self) {
        let inner = self.inner.lock().and_then(|mut inner| inner.take());
        // Waits for the kernel: not under the lock.
        drop(inner);
    }

    /// Both ends of its arena, the program's first.
    ///
    /// # Panics
    /// Not since it was in service once.
    #[must_use]
    pub fn links(&self) -> Option<[&'static Link; 2]> {
        // SAFETY: null, or a leaked link.
        let link = |at: &AtomicPtr<Link>| unsafe { at.load(Ordering::Acquire).as_ref() };
        Some([link(&self.near)?, link(&self.far)?])
    }

    /// Runs `f` under the inner lock. `None`: the queue pair is gone, or a handler has interrupted
    /// this thread's own section.
    pub fn inside<R>(&self, f: impl FnOnce(&mut EndpointState) -> R) -> Option<R> {
        let mut inner = self.inner.lock()?;
        inner.as_mut().map(f)
    }

    /// The connection stands.
    pub fn stands(&self) {
        self.inside(|inner| {
            if inner.immediate {
                inner.pair.be_ready_soon();
            }
        });
    }

    /// Is this, that a device tells, of this endpoint's?
    pub fn is_met_by(&self, device: Device, trouble: Trouble) -> bool {
        let met = self.inside(|inner| match trouble {
            Trouble::Pair(number) => inner.is_on(device) && inner.pair.number() == number,
            Trouble::Completions(address) => inner.share.address() == address,
            Trouble::Device => inner.is_on(device),
            Trouble::Port | Trouble::Nothing => false,
        });
        met == Some(true)
    }

    /// A look whether the peer still answers, if nothing else is under way.
    pub fn probe(&self) {
        self.with(Pump::probe);
    }

    /// Does something to the connection.
    pub fn with_id<R>(&self, f: impl FnOnce(&Id) -> R) -> Option<R> {
        self.inside(|inner| f(&inner.id))
    }

    /// Readable after [`arm`](Self::arm) when there is something to drive, be it of another link of
    /// the device.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        self.queue()?.descriptor()
    }

    /// By which its news come, while it is in service.
    pub fn queue(&self) -> Option<&'static Queue> {
        // SAFETY: null, or a queue, which is leaked.
        unsafe { self.queue.load(Ordering::Acquire).as_ref() }
    }

    /// See [`queue`](Self::queue). Under its lock.
    pub(crate) fn set_queue(&self, queue: Option<&'static Queue>) {
        let at = queue.map_or(ptr::null_mut(), |queue| ptr::from_ref(queue).cast_mut());
        self.queue.store(at, Ordering::Release);
    }

    /// Is the descriptor to tell of what comes next, for a sleeper or for the control
    /// thread?
    pub(crate) fn keen(&self) -> Keen {
        if self.dead.load(Ordering::Relaxed) {
            return Keen::No;
        }
        let flags = [&self.busy, &self.expected];
        let asked = flags.iter().any(|flag| flag.load(Ordering::SeqCst));
        match self.links() {
            _ if asked => Keen::Yes,
            Some([near, _]) if near.is_anybody_asleep() => Keen::Yes,
            Some([near, _]) if !near.has_waiters() => Keen::Unless,
            _ => Keen::No,
        }
    }

    /// Why it is lost, if it is.
    #[must_use]
    pub fn is_lost(&self) -> Option<Lost> {
        self.inside(|inner| inner.lost).flatten()
    }

    /// What was left for the control thread: the next.
    pub fn note(&self) -> Option<Note> {
        self.inside(|inner| inner.notes.pop_front()).flatten()
    }

    /// Streams of this end.
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

    /// As [`with`](Self::with), when what the program has done to the stream's words is known, and
    /// with what the words are to be after it.
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

    /// Takes what has come, and posts what may go.
    pub fn drive(&self) {
        self.work(true, |_, _| Ok(()));
    }

    /// As [`drive`](Self::drive), of what another thread, or this one for another endpoint, has
    /// taken from the queue.
    pub(crate) fn drive_told(&self) {
        self.work(false, |_, _| Ok(()));
    }

    /// The link is lost for this reason: its streams go on on TCP.
    pub fn lose(&self, why: Lost) {
        self.work(true, |_, _| Err(why));
    }

    /// Before a sleep: what comes from now on makes the descriptor readable. Edge-triggered: it may
    /// be so already.
    pub fn arm(&self) {
        self.work(true, |_, inner| {
            inner.share.queue.arm(inner.endpoint);
            Ok(())
        });
    }

    /// By the control thread, when it has done what there was to do: shall it hear of what comes
    /// next? Not where the program's threads will, unless something is under way, or `expected`.
    pub fn watch(&self, expected: bool) {
        let expected_before = self.expected.swap(expected, Ordering::SeqCst);
        let keen = self.inside(|inner| {
            (self.keen() != Keen::No).then_some((inner.endpoint, inner.share.queue))
        });
        if let Some((endpoint, queue)) = keen.flatten()
            && (expected && !expected_before || !self.listed.load(Ordering::SeqCst))
        {
            queue.list(endpoint);
            queue.settle();
        }
    }

    /// Events that nobody needs any more are taken out of the descriptor: it is readable only for
    /// new ones. Then as [`arm`](Self::arm).
    pub fn drain_events(&self) {
        if let Some(queue) = self.queue() {
            queue.drain_events();
        }
        self.arm();
    }

    /// Looks whether posted work comes to an end, if that is due; in how many ns it is to be looked
    /// again.
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

    /// What this end writes, and what the far one does, of a stream by this end's number.
    pub fn directions(&self, stream: u16) -> Option<[&'static Direction; 2]> {
        let [near, _] = self.links()?;
        let stream = near.stream(u32::from(stream))?;
        // SAFETY: the arena stays mapped while the link counts a stream, and that of `far` is one
        // as long as the pump has it.
        let [out, into] = unsafe { &*ptr::from_ref(&stream.dir) };
        Some([out, into])
    }

    /// Does something, then takes what has come, also from the device if it `polls`, and posts what
    /// may go. What was taken for other endpoints these are driven for after it, by this thread if
    /// it `polls`, else by the thread that has this one driven.
    pub fn work(
        &self,
        polls: bool,
        first: impl FnOnce(&Self, &mut EndpointState) -> Result<(), Lost>,
    ) {
        let Some(mut guard) = self.inner.lock() else {
            // This thread's own, in a handler: it looks at all streams when it is through.
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
        // A handler that came after the last look within.
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
            inner.take_lane()?;
            if inner.pump.is_draining() {
                // Only a look at the device shows that nothing more was delivered.
                if !polls {
                    self.take(inner, true)?;
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

    /// The link works no more: what had come counts, nothing else.
    fn fail(&self, inner: &mut EndpointState, lost: Lost) {
        inner.pair.fail();
        inner.lost = Some(lost);
        // A peer that breaks the rules is believed nothing more.
        if !matches!(lost, Lost::Peer(_)) {
            let _ = self.take(inner, true);
        }
        inner.share.shut();
        self.dead.store(true, Ordering::Relaxed);
        inner.pump.on_lost();
        for stream in 0..inner.places.len() {
            self.bring(inner, stream as u16);
        }
        // The peer's word that it has left these does not come any more.
        while let Some(stream) = inner.pump.take_left() {
            self.forget(stream);
        }
    }

    /// What the program did with a stream.
    fn look(&self, inner: &mut EndpointState, stream: u16) -> Result<(), Lost> {
        let Some([out, into]) = self.directions(stream) else {
            return Ok(());
        };
        if inner
            .places
            .get(usize::from(stream))
            .is_none_or(Option::is_none)
        {
            return Ok(());
        }
        let tail = Seq::new(out.tx.tail.read().offset);
        let head = Seq::new(into.rx.head.read().offset);
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
                // After a failure only what had come before it counts.
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
                // The streams are looked at after: at most as many as messages.
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
                // SAFETY: the receive is used up, so the device is through with its buffer; a copy.
                let said =
                    said.unwrap_or_else(|| unsafe { inner.small.said(slot).read_volatile() });
                if inner.lost.is_none() {
                    inner.receive(slot).map_err(|_| Lost::Device(0))?;
                }
                let EndpointState { pump, small, .. } = inner;
                let came = pump.on_came(said.word, said.len, |slot| {
                    // SAFETY: inside the mapping; a copy, since the peer can write there at any
                    // moment.
                    unsafe { small.slot(slot).read_volatile() }
                })?;
                match came {
                    Came::Bytes(stream, _) | Came::Direct(stream, _) => self.bring(inner, stream),
                    Came::Credit(stream) => {
                        self.free(inner, stream);
                        inner.note_record(stream);
                        if super::mode::mode() == Mode::Direct
                            && let (Some([out, _]), Some([near, _])) =
                                (self.directions(stream), self.links())
                        {
                            // For writers that wait for a taker: there is one.
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
                    Came::Lane(lane) => inner.notes.push_back(Note::Lane(Some(lane))),
                    Came::Nothing => {}
                }
                Ok(())
            }
        }
    }

    /// What the link has brought of a stream, as a writer tells it.
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
        // Back, under the reader's lock: what was not read by then comes again by TCP.
        if to < place.tail {
            users::with(|users| (users.owes)(near, u32::from(stream)));
        }
        if to != place.tail && into.tx.tail.advance(place.tail, to).is_ok() {
            place.tail = to;
            fence(Ordering::SeqCst);
            let waiters = into.rx_wishes.waiters.load(Ordering::Relaxed);
            users::with(|users| (users.wake)(near, waiters, u32::from(stream)));
        }
    }

    /// The staging ring is free up to what must be kept: as a reader tells it.
    fn free(&self, inner: &mut EndpointState, stream: u16) {
        let to = inner.pump.kept(stream).value();
        let place = inner.places.get_mut(usize::from(stream));
        let (Some(Some(place)), Some([out, _]), Some([near, _])) =
            (place, self.directions(stream), self.links())
        else {
            return;
        };
        if to > place.head && out.rx.head.consume(0, place.head, to).is_ok() {
            place.head = to;
            fence(Ordering::SeqCst);
            wake_writers(near, out, stream);
        }
    }
}

/// Writers that wait look again.
fn wake_writers(near: &'static Link, out: &Direction, stream: u16) {
    let waiters = out.tx_wishes.waiters.load(Ordering::Relaxed);
    users::with(|users| (users.wake)(near, waiters, u32::from(stream)));
}

/// The endpoint that plays the other end of the link.
pub fn endpoint_of(link: &Link) -> Option<&'static Endpoint> {
    // SAFETY: 0, or an endpoint, whose memory is type-stable.
    unsafe { (link.keeper() as *const Endpoint).as_ref() }
}
