//! The completion queue that all links of a device share, with the one descriptor that tells of
//! news.
//!
//! A thread that polls it gets what has come for any link. News of the endpoint that is being
//! driven are dealt with at once; others go to their endpoints' inboxes, and the same thread drives
//! those endpoints when it is through with its own. So one look finds the news of all, and a
//! sleeper hears of its own by the thread that looks first.
//!
//! Locks: an endpoint's inner, then the queue's, a leaf. It is held for a look, never while an
//! endpoint is driven, and no thread holds the inner locks of two endpoints. A thread that takes
//! news of an endpoint holds its inner lock until they are dealt with: they keep their order.
//!
//! No wake-up is lost (S: the sleeper, P: the poller; `[ ]`: under the queue's lock):
//!
//! ```text
//!   S: announces                       P: [polls; something came: no longer armed]
//!      [lists its endpoint as keen, arms]     drives the endpoints that it came for
//!      polls once more                    [not armed, and a keen endpoint: arms]
//!      sleeps                             polls once more, drives
//! ```
//!
//! If P's poll comes before S arms, S's own look finds the rest, and what comes later is told by
//! the descriptor. If it comes after, the endpoint is listed and S has announced, unless news woke
//! it: P arms for it. An endpoint leaves the list only when it is looked at under the lock and is
//! not keen: S lists it after announcing, so a thread that looks later sees it asleep.
//!
//! An endpoint that no thread sleeps for and none has slept for ([`Keen::Unless`]) is the control
//! thread's to look after, but not while threads of the program look by themselves: then to arm for
//! each message would wake it for nothing. So P does not arm for such an endpoint, and has the
//! control thread see, after [`LEASE_NS`], whether a thread has looked since. If nobody has, it
//! arms and looks itself. To arm for a sleeper ends that: P finds the queue not armed, and looks
//! which endpoints are keen.
//!
//! The memory of a `Queue` is one for the life of the process.

use super::endpoint::{Endpoint, endpoint_of};
use super::inbox::Inboxes;
use super::terms::{BATCH, NEED};
use super::users;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use sluice_fabric::lock::{Guard, Guarded};
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Device, Domain};
use sluice_fabric::verbs::queue::{Completions, News, Pair, Shape, Told};
use sluice_runtime::{control_thread, own_fds};
use std::sync::Arc;

/// Links for which there is room at first; so many times as much when it is used up, or in the next
/// queue of a device that cannot make room.
const LINKS: u32 = 2;
const GROWTH: u32 = 4;
const GROWTH_NEXT: u32 = 16;

/// For how long the control thread leaves a queue to the threads of the program that look at it, at
/// a time: so long at first, and twice as long each time that it finds they did, so many times.
const LEASE_NS: u64 = 10_000_000;
const LEASE_DOUBLINGS: u32 = 2;

/// A lease is wanted, and the control thread may not know it.
const WANTED: u64 = 1;
/// It was told, and has not begun it.
const TOLD: u64 = 2;

/// Is the descriptor to tell of what comes next for an endpoint?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keen {
    No,
    /// Unless threads of the program look.
    Unless,
    Yes,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Queue {
    inner: Guarded<Option<Held>>,
    /// A thread of the program has looked since the control thread last asked.
    looked: AtomicBool,
    /// When the control thread asks again (`sys::now_ns`); 0: it need not; [`WANTED`] or [`TOLD`]:
    /// it has not seen yet that it is to.
    lease_ends: AtomicU64,
    /// A handler wanted to look while this thread's own look went on.
    again: AtomicBool,
    /// Of its descriptor; -1: not in use.
    fd: AtomicI32,
    next: AtomicPtr<Queue>,
}

#[derive(Debug)]
struct Held {
    completions: Arc<Completions>,
    device: Device,
    /// Works no more.
    broken: bool,
    /// The next completion makes the descriptor readable, or it was made so; so many events may be
    /// in it.
    armed: bool,
    events: u32,
    /// It is not armed for the sake of endpoints that are keen only if nobody looks.
    leased: bool,
    /// So many times the lease was made twice as long.
    doublings: u32,
    /// Links that it has room for, and that have a share.
    room: u32,
    links: u32,
    inboxes: Inboxes<&'static Endpoint>,
    /// Wires for which somebody may sleep, or the control thread is to hear.
    keen: Vec<&'static Endpoint>,
}

/// What a look has brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// News of the endpoint's own.
    pub count: usize,
    /// Look again when these are dealt with.
    pub more: bool,
    /// [`Queue::settle`] has something to do then.
    pub rest: bool,
    /// No queue pair of the queue works any more.
    pub broken: bool,
}

static FIRST: AtomicPtr<Queue> = AtomicPtr::new(ptr::null_mut());

/// All queues that ever were.
fn all() -> impl Iterator<Item = &'static Queue> {
    // SAFETY: null, or leaked.
    let at = |cell: &AtomicPtr<Queue>| unsafe { cell.load(Ordering::Acquire).as_ref() };
    core::iter::successors(at(&FIRST), move |queue| at(&queue.next))
}

/// Takes what has come by any device, and drives the endpoints that it came for.
pub fn drive_all() {
    all().filter(|q| q.is_used()).for_each(Queue::drive);
}

/// A descriptor of the library's for links to other hosts: what `hosts::on_event` is told of it.
pub fn watch(fd: i32, what: u64, events: u32) {
    let data = control_thread::REMOTE | what & !control_thread::KINDS;
    let _ = control_thread::add(fd, events, data);
}

/// Before a sleep on streams of these links, of which some may be within this host: what comes by
/// them wakes waiters for [`bell`]. Then as [`drive_all`].
pub fn arm_all(links: impl Iterator<Item = &'static Link>) {
    let own = links.filter(|link| !link.is_foreign());
    arm_endpoints(own.filter_map(endpoint_of));
}

/// How a queue's descriptor is watched.
pub const BELL: u32 = (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
/// What the control thread is told then.
pub const QUEUE: u64 = 2;

/// A set of the program's threads is to hear of what comes by the link: of several that sleep one
/// is woken, and drives all links for all. The control thread is the last.
pub fn bell(link: &Link, set: i32, data: u64) {
    let Some(endpoint) = endpoint_of(link).filter(|_| !link.is_foreign()) else {
        return;
    };
    let Some(fd) = endpoint.descriptor() else {
        return;
    };
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, BELL, data).is_ok() {
        control_thread::unwatch(fd);
        watch(fd, QUEUE, BELL);
    }
    // Threads may be asleep in the set already.
    arm_endpoints(core::iter::once(endpoint));
}

fn arm_endpoints(endpoints: impl Iterator<Item = &'static Endpoint>) {
    let mut at: Option<(&Queue, Guard<'_, Option<Held>>)> = None;
    for endpoint in endpoints {
        let Some(queue) = endpoint.queue().filter(|q| q.is_used()) else {
            continue;
        };
        if at.as_ref().is_none_or(|(held, _)| !ptr::eq(*held, queue)) {
            drop(at.take());
            at = queue.inner.lock().map(|guard| (queue, guard));
            if at.is_none() {
                queue.again.store(true, Ordering::SeqCst);
            }
        }
        if let Some(held) = at.as_mut().and_then(|(_, guard)| guard.as_mut()) {
            held.list(queue, endpoint);
            held.arm();
        }
    }
    drop(at);
    drive_all();
}

/// Other processes wait on this set, too: they could not drive what it is woken for.
pub fn unbell(set: i32) {
    for queue in all() {
        if let Some(fd) = queue.descriptor()
            && sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok()
        {
            // One of them may have been.
            queue.drive();
        }
    }
}

/// By the control thread: begins leases; queues that it had left to the threads of the program, and
/// that none has looked at since, are its own again. It has just looked at all of them. In how many
/// ns to ask again.
pub fn see_to_leases(now: u64) -> Option<u64> {
    all().for_each(|queue| queue.see_to_lease(now));
    let ends = |queue: &Queue| Some(queue.lease_ends.load(Ordering::SeqCst)).filter(|at| *at != 0);
    all()
        .filter_map(ends)
        .min()
        .map(|at| at.saturating_sub(now))
}

/// The device has told that the queue at this address works no more: no other link is to use it.
pub fn condemn(address: usize) {
    for queue in all() {
        queue.with(|held| held.broken |= held.completions.address() == address);
    }
}

/// In the child of a fork: the queues are the parent's. No lock is taken, since its holder may not
/// exist here.
pub fn after_fork() {
    for queue in all() {
        let fd = queue.fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            own_fds::close(fd);
        }
    }
}

impl Queue {
    const fn new() -> Self {
        Self {
            inner: Guarded::new(None),
            looked: AtomicBool::new(false),
            lease_ends: AtomicU64::new(0),
            again: AtomicBool::new(false),
            fd: AtomicI32::new(-1),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn is_used(&self) -> bool {
        self.fd.load(Ordering::Relaxed) >= 0
    }

    /// Readable after [`arm`](Self::arm) when there is something to drive.
    pub fn descriptor(&self) -> Option<i32> {
        Some(self.fd.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Held) -> R) -> Option<R> {
        let Some(mut guard) = self.inner.lock() else {
            // This thread's own look, in a handler: it looks again when it is through.
            self.again.store(true, Ordering::SeqCst);
            return None;
        };
        guard.as_mut().map(f)
    }

    /// By whom holds the endpoint's inner lock: what has come for it, from its inbox, or else from
    /// the device if it `polls`.
    pub fn take(&self, share: &Share, into: &mut [News; BATCH], polls: bool) -> Taken {
        if polls {
            self.is_looked_at();
        }
        let look = |held: &mut Held| {
            let mut count = held.inboxes.take(share.at, into);
            let mut more = count != 0;
            if !more && polls {
                more = held.poll(|told, inboxes| {
                    if told.pair == share.number
                        && let Some(to) = into.get_mut(count)
                    {
                        *to = told.news;
                        count += 1;
                    } else {
                        inboxes.put(told);
                    }
                });
            }
            Taken {
                count,
                more,
                rest: held.is_any_rest(),
                broken: held.broken,
            }
        };
        let Some(mut taken) = self.with(look) else {
            return Taken::default();
        };
        taken.more |= polls && self.was_wanted();
        taken
    }

    /// Did a handler want to look during a look?
    fn was_wanted(&self) -> bool {
        self.again.load(Ordering::Relaxed) && self.again.swap(false, Ordering::SeqCst)
    }

    /// Takes what has come for any endpoint, and drives those.
    fn drive(&self) {
        self.is_looked_at();
        loop {
            let look = |held: &mut Held| {
                let more = held.poll(|told, inboxes| inboxes.put(told));
                (more, held.is_any_rest())
            };
            let Some((more, rest)) = self.with(look) else {
                return;
            };
            if rest {
                self.settle();
            }
            if !more && !self.was_wanted() {
                return;
            }
        }
    }

    /// After a look, when no lock of an endpoint is held: drives the endpoints that something came
    /// for, and sees to it that waiters hear of what comes next.
    pub fn settle(&self) {
        self.hand_out();
        let look = |held: &mut Held| match held.keenest() {
            Keen::Yes => (held.arm(), false),
            Keen::Unless if self.is_left_to_program() => (false, true),
            Keen::Unless => (held.arm(), false),
            Keen::No => (false, false),
        };
        let (mut armed, lease) = self.with(look).unwrap_or_default();
        if lease {
            // In this order, and not under the lock: a handler may jump out of here.
            self.begin_lease();
            // A thread that has listed an endpoint since arms, or settles.
            let begun = self.with(|held| {
                let runs = self.lease_ends.load(Ordering::SeqCst) != 0;
                held.leased |= runs && !held.armed;
                // One that is over already is not asked about.
                !runs && held.arm()
            });
            armed = begun.unwrap_or(false);
        }
        if armed {
            // What came before does not tell by itself. Of what came since, the descriptor has
            // told.
            let mut more = true;
            while more {
                let look = |held: &mut Held| held.poll(|told, inboxes| inboxes.put(told));
                more = self.with(look).unwrap_or(false);
                self.hand_out();
            }
        }
        if self.was_wanted() {
            self.drive();
        }
    }

    /// By a thread that is about to look.
    #[inline]
    fn is_looked_at(&self) {
        if !self.looked.load(Ordering::Relaxed) && !control_thread::is_own_thread() {
            self.looked.store(true, Ordering::Relaxed);
        }
    }

    /// Do threads of the program look, or is it one that asks?
    fn is_left_to_program(&self) -> bool {
        if !control_thread::is_own_thread() {
            return true;
        }
        // The lease that runs asks for itself.
        if self.lease_ends.load(Ordering::SeqCst) > TOLD {
            return self.looked.load(Ordering::Relaxed);
        }
        self.looked.swap(false, Ordering::Relaxed)
    }

    /// The control thread is to ask in a while whether anybody looks.
    fn begin_lease(&self) {
        // A handler may have jumped out of here before it told.
        if self.lease_ends.load(Ordering::SeqCst) <= WANTED {
            self.lease_ends.store(WANTED, Ordering::SeqCst);
            // That thread itself asks for the next before it sleeps.
            if !control_thread::is_own_thread() {
                control_thread::poke();
            }
            let _ =
                self.lease_ends
                    .compare_exchange(WANTED, TOLD, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// By the control thread: begins the lease that was wanted, and ends the one that is over.
    fn see_to_lease(&self, now: u64) {
        match self.lease_ends.load(Ordering::SeqCst) {
            0 => {}
            WANTED | TOLD => self.lease_ends.store(now + LEASE_NS, Ordering::SeqCst),
            ends if now < ends => {}
            _ => self.end_lease(now),
        }
    }

    fn end_lease(&self, now: u64) {
        // First: what is not used any more has no lease, and one that is wanted from now on is not
        // this one.
        self.lease_ends.store(0, Ordering::SeqCst);
        let looked = self.looked.swap(false, Ordering::Relaxed);
        let goes_on = self.with(|held| {
            // Not if it tells by itself. If an endpoint was listed since, the thread that listed it
            // sees to that.
            let goes_on = looked && !held.armed;
            held.leased &= goes_on;
            if goes_on {
                held.doublings = LEASE_DOUBLINGS.min(held.doublings + 1);
                let next = now + (LEASE_NS << held.doublings);
                self.lease_ends.store(next, Ordering::SeqCst);
            } else {
                held.doublings = 0;
            }
            goes_on
        });
        if goes_on != Some(true) {
            self.drive();
        }
    }

    fn hand_out(&self) {
        while let Some(endpoint) = self.with(|held| held.inboxes.next_due()).flatten() {
            endpoint.drive_told();
        }
    }

    /// For a thread that waits on the endpoint, or will: a look must follow.
    pub fn arm(&self, endpoint: &'static Endpoint) {
        self.with(|held| {
            held.list(self, endpoint);
            held.arm();
        });
    }

    /// The control thread, or a sleeper, may want to hear of the endpoint's news:
    /// [`settle`](Self::settle) decides.
    pub fn list(&self, endpoint: &'static Endpoint) {
        self.with(|held| held.list(self, endpoint));
    }

    /// Events that nobody needs any more are taken out of the descriptor: it is readable only for
    /// new ones, of which its waiters still hear. A look must follow.
    pub fn drain_events(&self) {
        self.with(|held| {
            // Nor does what they told of tell again.
            let was_armed = core::mem::take(&mut held.armed);
            let is_awaited = core::mem::take(&mut held.events) != 0 || was_armed;
            while held.completions.take_event().is_ok() {}
            if is_awaited {
                held.arm();
            }
        });
    }
}

impl Held {
    /// One look at the device: `f` is told what came, in order. Is there more?
    fn poll(&mut self, mut f: impl FnMut(Told, &mut Inboxes<&'static Endpoint>)) -> bool {
        let nothing = Told {
            pair: 0,
            news: News::Failed { status: 0 },
        };
        let mut batch = [nothing; BATCH];
        let Ok(count) = self.completions.poll(&mut batch) else {
            self.fail();
            return false;
        };
        for told in batch.iter().take(count) {
            f(*told, &mut self.inboxes);
        }
        if count != 0 && self.armed {
            self.armed = false;
            self.events += 1;
        }
        count == BATCH
    }

    /// Works no more: all endpoints are to see it.
    fn fail(&mut self) {
        if !core::mem::replace(&mut self.broken, true) {
            self.inboxes.all_due();
        }
    }

    fn is_any_rest(&self) -> bool {
        self.inboxes.is_any_due() || !self.armed && !self.leased && !self.keen.is_empty()
    }

    fn list(&mut self, queue: &Queue, endpoint: &'static Endpoint) {
        // Whatever it was left unarmed for, this may be more.
        self.leased = false;
        // Not one that has left meanwhile.
        if endpoint.queue().is_some_and(|own| ptr::eq(own, queue))
            && !endpoint.listed.swap(true, Ordering::SeqCst)
        {
            self.keen.push(endpoint);
        }
    }

    /// Is anybody to hear of what comes next? Looks at endpoints until one is keen without
    /// conditions; those that are not keen at all leave the list.
    fn keenest(&mut self) -> Keen {
        let mut keenest = Keen::No;
        let mut at = self.keen.len();
        while at > 0 && keenest < Keen::Yes {
            at -= 1;
            let Some(endpoint) = self.keen.get(at) else {
                break;
            };
            // A thread that finds it listed before this has said before why.
            endpoint.listed.store(false, Ordering::SeqCst);
            let keen = endpoint.keen();
            if keen == Keen::No {
                self.keen.swap_remove(at);
            } else {
                endpoint.listed.store(true, Ordering::SeqCst);
                keenest = keenest.max(keen);
            }
        }
        keenest
    }

    /// The next completion is to tell; false: it does already.
    fn arm(&mut self) -> bool {
        if self.broken || core::mem::replace(&mut self.armed, true) {
            return false;
        }
        self.leased = false;
        // One for each time that it was armed before.
        while self.events > 0 {
            self.events -= 1;
            let _ = self.completions.take_event();
        }
        if self.completions.arm().is_err() {
            self.fail();
        }
        true
    }

    /// Room for one more link, made if need be.
    fn make_room(&mut self) -> bool {
        if self.broken {
            return false;
        }
        if self.links >= self.room {
            let most = self.device.limits.completions;
            let len = (self.room * GROWTH * NEED).min(most);
            if len / NEED > self.room && self.completions.resize(len).is_ok() {
                self.room = self.completions.room().min(most) / NEED;
            }
        }
        self.links < self.room
    }
}

/// A link's part of a queue: room for all its completions, and an inbox. Dropped when its queue
/// pair is gone.
#[derive(Debug)]
pub struct Share {
    pub(crate) queue: &'static Queue,
    completions: Arc<Completions>,
    number: u32,
    at: usize,
    /// Whose it is, once it was entered.
    endpoint: Option<&'static Endpoint>,
    /// Of an endpoint that has another.
    second: bool,
}

impl Share {
    /// Room for one more link of the device, in a queue that it has or a new one.
    ///
    /// # Errors
    /// ENOBUFS: the device has no queue of that length; its own.
    pub fn of(device: Device) -> Result<Self, Errno> {
        let mut largest = 0;
        for queue in all().filter(|q| q.is_used()) {
            let room = queue.with(|held| {
                if held.device.descriptors() != device.descriptors() {
                    return None;
                }
                largest = largest.max(held.room);
                held.make_room().then(|| {
                    held.links += 1;
                    held.completions.clone()
                })
            });
            if let Some(completions) = room.flatten() {
                return Ok(Self::at(queue, completions));
            }
        }
        Self::new(device, (largest * GROWTH_NEXT).max(LINKS))
    }

    const fn at(queue: &'static Queue, completions: Arc<Completions>) -> Self {
        Self {
            queue,
            completions,
            number: 0,
            at: usize::MAX,
            endpoint: None,
            second: false,
        }
    }

    /// Room for one more queue pair of the same endpoint, in the same queue.
    ///
    /// # Errors
    /// ENOBUFS: it has none.
    pub fn beside(&self) -> Result<Self, Errno> {
        let room = self.queue.with(|held| {
            held.make_room().then(|| {
                held.links += 1;
                held.completions.clone()
            })
        });
        let mut share = Self::at(self.queue, room.flatten().ok_or(libc::ENOBUFS)?);
        share.second = true;
        Ok(share)
    }

    /// In a new queue with room for so many links, or as many as the device allows.
    fn new(device: Device, links: u32) -> Result<Self, Errno> {
        let most = device.limits.completions;
        let len = (links * NEED).min(most);
        if len < NEED {
            return Err(libc::ENOBUFS);
        }
        let completions = Completions::new(&device, len)?;
        sys::set_nonblocking(completions.descriptor())?;
        completions.rehouse(own_fds::copy);
        let fd = completions.descriptor();
        let completions = Arc::new(completions);
        let held = Held {
            device,
            broken: false,
            armed: false,
            events: 0,
            leased: false,
            doublings: 0,
            room: completions.room().min(most) / NEED,
            links: 1,
            inboxes: Inboxes::new(),
            keen: Vec::new(),
            completions: completions.clone(),
        };
        let queue = spare();
        let mut place = queue.inner.lock().ok_or(libc::EBUSY)?;
        if place.is_some() {
            return Err(libc::EBUSY);
        }
        *place = Some(held);
        queue.fd.store(fd, Ordering::Release);
        Ok(Self::at(queue, completions))
    }

    /// By which the device names the queue.
    pub fn address(&self) -> usize {
        self.completions.address()
    }

    /// The queue pair of an id.
    ///
    /// # Errors
    /// As [`Id::pair`].
    pub fn pair(&self, id: &Id, domain: &Domain, shape: Shape) -> Result<Pair, Errno> {
        id.pair(domain, &self.completions, shape)
    }

    /// The endpoint's queue pair has this number, and nothing was posted to it yet. What others of
    /// that number have left there is taken out first.
    ///
    /// # Errors
    /// EBUSY: there is one of that number.
    pub fn enter(&mut self, number: u32, endpoint: &'static Endpoint) -> Result<(), Errno> {
        let entered = self.queue.with(|held| {
            while held.poll(|told, inboxes| inboxes.put(told)) {}
            let at = held.inboxes.enter(number, endpoint)?;
            endpoint.set_queue(Some(self.queue));
            Some(at)
        });
        self.at = entered.flatten().ok_or(libc::EBUSY)?;
        (self.number, self.endpoint) = (number, Some(endpoint));
        Ok(())
    }

    /// The endpoint is lost: what comes from now on does not count.
    pub fn shut(&self) {
        self.queue.with(|held| held.inboxes.shut(self.at));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(mut guard) = self.queue.inner.lock() else {
            return;
        };
        let Some(held) = guard.as_mut() else { return };
        if self.endpoint.is_some() {
            held.inboxes.leave(self.at);
        }
        if let Some(endpoint) = self.endpoint.filter(|_| !self.second) {
            held.keen.retain(|keen| !ptr::eq(*keen, endpoint));
            endpoint.set_queue(None);
            endpoint.listed.store(false, Ordering::SeqCst);
        }
        held.links -= 1;
        let over = if held.links == 0 { guard.take() } else { None };
        if over.is_some() {
            let fd = self.queue.fd.load(Ordering::Relaxed);
            users::with(|users| (users.bell_goes)(fd));
            self.queue.fd.store(-1, Ordering::Relaxed);
            own_fds::forget(fd);
        }
        // What is left of it goes with this share: that waits for the kernel, and is not done under
        // the lock.
        drop(guard);
        drop(over);
    }
}

/// A queue that is not in use, made if there is none.
fn spare() -> &'static Queue {
    if let Some(queue) = all().find(|q| !q.is_used()) {
        return queue;
    }
    let made: &'static Queue = Box::leak(Box::new(Queue::new()));
    let mut first = FIRST.load(Ordering::Acquire);
    loop {
        made.next.store(first, Ordering::Release);
        let entry = ptr::from_ref(made).cast_mut();
        match FIRST.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return made,
            Err(now) => first = now,
        }
    }
}
