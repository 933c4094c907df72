//! The completion queue that all links of a device share, and its one descriptor.
//!
//! A thread that polls the queue gets completions of all its links. It handles those of the
//! endpoint that it drives at once, and puts others into their endpoints' inboxes. When it is
//! through with its own endpoint, it drives those. So one poll finds everybody's news, and sleepers
//! hear of theirs from the thread that polled first.
//!
//! Locks: an endpoint's inner lock, then the queue's, which is a leaf. The queue's lock is held for
//! a poll, never while an endpoint is driven, and no thread holds the inner locks of two endpoints.
//! A thread that takes completions of an endpoint holds its inner lock until they are handled, so
//! they keep their order.
//!
//! No wake-up is lost (S: the sleeper, P: the poller; `[ ]`: under the queue's lock):
//!
//! ```text
//!   S: announces its sleep             P: [polls; something came: no longer armed]
//!      [lists its endpoint, arms]         drives the endpoints that have completions
//!      polls once more                    [not armed, and a listed endpoint wants news: arms]
//!      sleeps                             polls once more, drives
//! ```
//!
//! If P polls before S arms, S's own poll finds the rest, and the descriptor tells of later
//! completions. If P polls after S arms, the endpoint is listed and S is announced (unless news
//! woke it), so P arms for it. An endpoint leaves the list only if it wants none when looked at
//! under the lock. S lists it after its announcement, so a thread that looks at it later sees S
//! asleep.
//!
//! An endpoint for which no thread sleeps, or has ever slept ([`Interest::IfUnpolled`]), is the
//! control thread's to drive, but not while threads of the program poll: arming for each message
//! would wake the control thread for nothing. For such an endpoint P does not arm, but begins a
//! *lease*: after [`LEASE_NS`] the control thread looks whether any thread has polled since. If
//! none has, the control thread arms and polls itself. Arming for a sleeper ends the lease: P finds
//! the queue not armed, and looks which endpoints want news.
//!
//! The memory of a `Queue` stays a `Queue` for the life of the process.

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

/// Links that a queue has room for at first; the factor by which it grows when full; and that for
/// the next queue of a device that cannot resize one.
const LINKS: u32 = 2;
const GROWTH: u32 = 4;
const GROWTH_NEXT: u32 = 16;

/// Length of a lease, for which the control thread leaves a queue to the threads of the program;
/// and how often it is doubled, each time because they polled.
const LEASE_NS: u64 = 10_000_000;
const LEASE_DOUBLINGS: u32 = 2;

/// A lease is wanted, and the control thread may not have been told.
const WANTED: u64 = 1;
/// The control thread was told of the lease, and has not begun it.
const TOLD: u64 = 2;

/// Whether the descriptor must tell of an endpoint's next completion; in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Interest {
    None,
    /// Unless threads of the program poll.
    IfUnpolled,
    Always,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Queue {
    inner: Guarded<Option<Held>>,
    /// A thread of the program has polled since the control thread last asked.
    looked: AtomicBool,
    /// When the lease ends (`sys::now_ns`); 0: there is none; [`WANTED`] or [`TOLD`]: the control
    /// thread has not begun it yet.
    lease_ends: AtomicU64,
    /// A signal handler wanted to poll while this thread held the lock.
    again: AtomicBool,
    /// The descriptor; -1: the queue is not in use.
    fd: AtomicI32,
    next: AtomicPtr<Queue>,
}

#[derive(Debug)]
struct Held {
    completions: Arc<Completions>,
    device: Device,
    /// The completion queue has failed.
    broken: bool,
    /// The next completion makes the descriptor readable, or one has already; and how many earlier
    /// events may be in the descriptor.
    armed: bool,
    events: u32,
    /// Not armed, for a lease: no listed endpoint's interest is [`Interest::Always`].
    leased: bool,
    /// How many times the lease was doubled.
    doublings: u32,
    /// Links that the queue has room for, and links that have a share.
    room: u32,
    links: u32,
    inboxes: Inboxes<&'static Endpoint>,
    /// Endpoints for which a thread may sleep, or of which the control thread may have to hear.
    interested: Vec<&'static Endpoint>,
}

/// The result of [`Queue::take`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Completions of the endpoint itself.
    pub count: usize,
    /// There may be more: take again after handling these.
    pub more: bool,
    /// The caller must call [`Queue::settle`] after it.
    pub rest: bool,
    /// The completion queue has failed, and all its queue pairs with it.
    pub broken: bool,
}

static FIRST: AtomicPtr<Queue> = AtomicPtr::new(ptr::null_mut());

/// All queues ever made.
fn all() -> impl Iterator<Item = &'static Queue> {
    // SAFETY: null, or a queue that `spare` has leaked.
    let at = |cell: &AtomicPtr<Queue>| unsafe { cell.load(Ordering::Acquire).as_ref() };
    core::iter::successors(at(&FIRST), move |queue| at(&queue.next))
}

/// Polls all devices, and drives the endpoints that have completions.
pub fn drive_all() {
    all().filter(|q| q.is_used()).for_each(Queue::drive);
}

/// Watches a descriptor for links to other hosts: `hosts::on_event` gets `what`.
pub fn watch(fd: i32, what: u64, events: u32) {
    let data = control_thread::REMOTE | what & !control_thread::KINDS;
    let _ = control_thread::add(fd, events, data);
}

/// Before a sleep on streams of these links, of which some may be within this host: later news wake
/// waiters that use [`bell`]. Then polls as [`drive_all`] does.
pub fn arm_all(links: impl Iterator<Item = &'static Link>) {
    let own = links.filter(|link| !link.is_foreign());
    arm_endpoints(own.filter_map(endpoint_of));
}

/// Events of a queue's descriptor. Exclusive: one waiter wakes, and drives for all.
pub const BELL: u32 = (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
/// `what` of a queue's descriptor, for [`watch`].
pub const QUEUE: u64 = 2;

/// Adds the descriptor of the link's queue to a set of the program's threads. Of several sleeping
/// threads one is woken, and drives all links; the control thread is the last in turn.
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

/// Takes queues out of a set on which other processes wait, too, and could not drive.
pub fn unbell(set: i32) {
    for queue in all() {
        if let Some(fd) = queue.descriptor()
            && sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok()
        {
            // One of them may have been woken in place of a thread of this process.
            queue.drive();
        }
    }
}

/// By the control thread, just after it has polled all queues: begins leases that are wanted, and
/// takes back queues that no thread of the program has polled during theirs. Returns the ns until
/// the next lease ends.
pub fn see_to_leases(now: u64) -> Option<u64> {
    all().for_each(|queue| queue.see_to_lease(now));
    let ends = |queue: &Queue| Some(queue.lease_ends.load(Ordering::SeqCst)).filter(|at| *at != 0);
    all()
        .filter_map(ends)
        .min()
        .map(|at| at.saturating_sub(now))
}

/// The device reports that the queue at this address has failed: no new link may use it.
pub fn condemn(address: usize) {
    for queue in all() {
        queue.with(|held| held.broken |= held.completions.address() == address);
    }
}

/// In the child of a fork: closes the parent's queues. Takes no lock, since the thread that holds
/// it may not exist here.
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

    /// After [`arm`](Self::arm): readable when there is something to drive.
    pub fn descriptor(&self) -> Option<i32> {
        Some(self.fd.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Held) -> R) -> Option<R> {
        let Some(mut guard) = self.inner.lock() else {
            // A handler that interrupted this thread's own poll, which polls again afterwards.
            self.again.store(true, Ordering::SeqCst);
            return None;
        };
        guard.as_mut().map(f)
    }

    /// Takes completions from the inbox of an endpoint; if it is empty and `polls`, from the
    /// device. The caller holds the endpoint's inner lock.
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

    /// True if a handler wanted to poll during a poll.
    fn was_wanted(&self) -> bool {
        self.again.load(Ordering::Relaxed) && self.again.swap(false, Ordering::SeqCst)
    }

    /// Polls for all endpoints, and drives those that have completions.
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

    /// After a poll, when no endpoint's lock is held: drives the endpoints that have completions,
    /// and arms or begins a lease, so that waiters hear of later ones.
    pub fn settle(&self) {
        self.hand_out();
        let look = |held: &mut Held| match held.strongest_interest() {
            Interest::Always => (held.arm(), false),
            Interest::IfUnpolled if self.is_left_to_program() => (false, true),
            Interest::IfUnpolled => (held.arm(), false),
            Interest::None => (false, false),
        };
        let (mut armed, lease) = self.with(look).unwrap_or_default();
        if lease {
            // Not under the lock, and before `leased` is set: a handler may `longjmp` out of here.
            self.begin_lease();
            // A thread that listed an endpoint meanwhile arms the queue, or settles.
            let begun = self.with(|held| {
                let runs = self.lease_ends.load(Ordering::SeqCst) != 0;
                held.leased |= runs && !held.armed;
                // The lease is over already: no question follows, so the queue must be armed.
                !runs && held.arm()
            });
            armed = begun.unwrap_or(false);
        }
        if armed {
            // Completions from before the arming raise no event; later ones do.
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

    /// Called by a thread that is about to poll.
    #[inline]
    fn is_looked_at(&self) {
        if !self.looked.load(Ordering::Relaxed) && !control_thread::is_own_thread() {
            self.looked.store(true, Ordering::Relaxed);
        }
    }

    /// True if threads of the program poll: the calling thread is one, or one did of late.
    fn is_left_to_program(&self) -> bool {
        if !control_thread::is_own_thread() {
            return true;
        }
        // A lease is running, and its end resets the flag.
        if self.lease_ends.load(Ordering::SeqCst) > TOLD {
            return self.looked.load(Ordering::Relaxed);
        }
        self.looked.swap(false, Ordering::Relaxed)
    }

    /// Has the control thread ask, after a while, whether any thread has polled.
    fn begin_lease(&self) {
        // At `WANTED` a handler may have jumped out of here before the poke.
        if self.lease_ends.load(Ordering::SeqCst) <= WANTED {
            self.lease_ends.store(WANTED, Ordering::SeqCst);
            // The control thread looks at leases anyway before it sleeps.
            if !control_thread::is_own_thread() {
                control_thread::poke();
            }
            let _ =
                self.lease_ends
                    .compare_exchange(WANTED, TOLD, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// By the control thread: begins the lease that is wanted, or ends the one that is over.
    fn see_to_lease(&self, now: u64) {
        match self.lease_ends.load(Ordering::SeqCst) {
            0 => {}
            WANTED | TOLD => self.lease_ends.store(now + LEASE_NS, Ordering::SeqCst),
            ends if now < ends => {}
            _ => self.end_lease(now),
        }
    }

    fn end_lease(&self, now: u64) {
        // First: a queue that is no longer in use needs no lease, and a lease that is wanted from
        // now on is another one.
        self.lease_ends.store(0, Ordering::SeqCst);
        let looked = self.looked.swap(false, Ordering::Relaxed);
        let goes_on = self.with(|held| {
            // Not if the queue is armed. If an endpoint was listed meanwhile, the thread that
            // listed it arms the queue, or settles.
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

    /// For a thread that waits on the endpoint, or will. A poll must follow.
    pub fn arm(&self, endpoint: &'static Endpoint) {
        self.with(|held| {
            held.list(self, endpoint);
            held.arm();
        });
    }

    /// Lists the endpoint, since the control thread or a sleeper may want to hear of its
    /// completions. [`settle`](Self::settle) decides.
    pub fn list(&self, endpoint: &'static Endpoint) {
        self.with(|held| held.list(self, endpoint));
    }

    /// Takes events out of the descriptor, so that only new completions make it readable; its
    /// waiters still hear of those. A poll must follow.
    pub fn drain_events(&self) {
        self.with(|held| {
            // Nor may the events that are taken here be counted as still to be taken.
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
    /// Polls the device once: `f` gets the completions in order. Returns true if there may be more.
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

    /// The completion queue has failed: all endpoints must be driven to see it.
    fn fail(&mut self) {
        if !core::mem::replace(&mut self.broken, true) {
            self.inboxes.all_due();
        }
    }

    fn is_any_rest(&self) -> bool {
        self.inboxes.is_any_due() || !self.armed && !self.leased && !self.interested.is_empty()
    }

    fn list(&mut self, queue: &Queue, endpoint: &'static Endpoint) {
        // The lease was for endpoints of less interest, perhaps.
        self.leased = false;
        // Not if the endpoint has left the queue meanwhile.
        if endpoint.queue().is_some_and(|own| ptr::eq(own, queue))
            && !endpoint.listed.swap(true, Ordering::SeqCst)
        {
            self.interested.push(endpoint);
        }
    }

    /// The strongest interest of a listed endpoint. Endpoints without interest leave the list. The
    /// search stops at the first with [`Interest::Always`].
    fn strongest_interest(&mut self) -> Interest {
        let mut strongest = Interest::None;
        let mut at = self.interested.len();
        while at > 0 && strongest < Interest::Always {
            at -= 1;
            let Some(endpoint) = self.interested.get(at) else {
                break;
            };
            // Cleared before the look: a thread that finds it set has changed what `interest` sees.
            endpoint.listed.store(false, Ordering::SeqCst);
            let interest = endpoint.interest();
            if interest == Interest::None {
                self.interested.swap_remove(at);
            } else {
                endpoint.listed.store(true, Ordering::SeqCst);
                strongest = strongest.max(interest);
            }
        }
        strongest
    }

    /// Makes the next completion raise an event. Returns false if it will already.
    fn arm(&mut self) -> bool {
        if self.broken || core::mem::replace(&mut self.armed, true) {
            return false;
        }
        self.leased = false;
        // One event for each earlier arming.
        while self.events > 0 {
            self.events -= 1;
            let _ = self.completions.take_event();
        }
        if self.completions.arm().is_err() {
            self.fail();
        }
        true
    }

    /// Makes room for one more link, if there is none. Returns false if it cannot.
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

/// A queue pair's part of a queue: room for all its completions, and an inbox. Dropped after the
/// queue pair.
#[derive(Debug)]
pub struct Share {
    pub(crate) queue: &'static Queue,
    completions: Arc<Completions>,
    number: u32,
    at: usize,
    /// The owner, after [`enter`](Self::enter).
    endpoint: Option<&'static Endpoint>,
    /// The owner has another share, which keeps it listed.
    second: bool,
}

impl Share {
    /// Room for one more link of the device, in one of its queues or in a new one.
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

    /// Room in a new queue, made for `links` links or as many as the device allows.
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
            interested: Vec::new(),
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

    /// The address by which the device names the completion queue.
    pub fn address(&self) -> usize {
        self.completions.address()
    }

    /// Makes the queue pair of an id.
    ///
    /// # Errors
    /// As [`Id::pair`].
    pub fn pair(&self, id: &Id, domain: &Domain, shape: Shape) -> Result<Pair, Errno> {
        id.pair(domain, &self.completions, shape)
    }

    /// Makes the inbox of the endpoint's queue pair of this number, before anything is posted
    /// there. Polls first, so that completions of an earlier queue pair of that number are gone.
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

    /// The endpoint is lost: drops its completions from now on.
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
            held.interested.retain(|other| !ptr::eq(*other, endpoint));
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
        // The last owner destroys the completion queue with its share: that waits for the kernel,
        // so it is done after the unlock.
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
