//! A link's queue pair for direct transfers (`stream/src/pump/direct.rs`), made when the first is
//! wanted. Its loss costs only the transfers under way: the link and its streams live on.

use super::endpoint::Endpoint;
use super::endpoint_state::EndpointState;
use super::queue::Share;
use super::terms::{BATCH, DIRECT_RECEIVES, Lost, Note, TICKS};
use super::users;
use core::sync::atomic::Ordering;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Device, Region, Trouble};
use sluice_fabric::verbs::queue::{News, Pair, Post, Shape};
use sluice_stream::Seq;
use sluice_stream::pump::{Came, Message, What};

/// At most 16 direct transfers are under way at once, and each is at most two work requests, of
/// which the second carries a [`Said`].
///
/// [`Said`]: sluice_fabric::verbs::queue::Said
const SHAPE: Shape = Shape {
    sends: 2 * 16,
    receives: DIRECT_RECEIVES as u32,
    inline: 8,
};

/// Losses after which this end asks for no other, and the wait after the first; each later wait is
/// twice as long.
const LOSSES: u32 = 6;
const WAIT_NS: u64 = 200_000_000;

/// See the [module](self).
#[derive(Debug)]
pub struct DirectQp {
    // Drop order: the queue pair before its connection and its completion queue.
    pair: Pair,
    id: Id,
    share: Share,
    stands: bool,
}

/// An endpoint's queue pair for direct transfers, and its losses.
#[derive(Debug, Default)]
pub struct DirectQps {
    direct_qp: Option<DirectQp>,
    losses: u32,
    /// When another may be made (`sys::now_ns`).
    again_ns: u64,
    /// The control thread was asked to make one.
    wanted: bool,
    /// It has failed, and the control thread must destroy it.
    failed: bool,
    /// Transfers posted and completed; both as of the last tick; ticks without a completion.
    pub shots: u64,
    pub landed: u64,
    pub looked: (u64, u64),
    pub stuck: u8,
    /// At the last look streams starved: see [`Endpoint::starved`].
    starve: bool,
}

impl EndpointState {
    /// Posts a direct transfer.
    pub fn shoot(&mut self, Message { what, word }: Message) {
        let What::Direct {
            stream,
            from,
            len,
            to,
        } = what
        else {
            return;
        };
        let ((at, key), by_device) = self.bytes_at(stream, from.value());
        let Some(direct_qp) = self.direct_qps.direct_qp.as_ref() else {
            return self.fail_direct_qp();
        };
        let post = Post {
            from: (at, len, key),
            to,
            word,
            mark: Some(1),
            by_device,
        };
        self.direct_qps.shots += 1;
        // SAFETY: bytes in the staging ring stay until the peer has credited them.
        if unsafe { direct_qp.pair.post(&[post]) }.is_err() {
            self.fail_direct_qp();
        }
    }

    /// Takes completions of direct transfers: of this end's, after which `free` gets the stream,
    /// and of the peer's, after which `came` does.
    pub(crate) fn take_direct_qp(
        &mut self,
        mut free: impl FnMut(&mut Self, u16),
        mut came: impl FnMut(&mut Self, u16),
    ) -> Result<(), Lost> {
        loop {
            let Some(direct_qp) = &self.direct_qps.direct_qp else {
                return Ok(());
            };
            let mut batch = [News::Failed { status: 0 }; BATCH];
            let taken = direct_qp
                .share
                .queue
                .take(&direct_qp.share, &mut batch, false);
            self.rest |= taken.rest;
            for news in batch.iter().take(taken.count) {
                match *news {
                    News::Done { .. } if !self.direct_qps.failed => {
                        self.direct_qps.landed += 1;
                        let mut done = None;
                        self.pump.on_direct_done(1, |stream| done = Some(stream))?;
                        if let Some(stream) = done {
                            free(self, stream);
                        }
                    }
                    News::Came { slot, said } => {
                        // SAFETY: the receive has completed, so the device has no use for its
                        // buffer.
                        let said = said.unwrap_or_else(|| unsafe {
                            self.control.notice(slot).read_volatile()
                        });
                        if self.receive_direct(slot).is_err() {
                            self.fail_direct_qp();
                        }
                        if let Came::Direct(stream, _) = self.pump.on_direct(said.word, said.len)? {
                            came(self, stream);
                        }
                    }
                    News::Failed { .. } => self.fail_direct_qp(),
                    News::Done { .. } => {}
                }
            }
            if !taken.more {
                return Ok(());
            }
        }
    }

    /// Posts a receive for a transfer of the peer's.
    fn receive_direct(&self, slot: u64) -> Result<(), Errno> {
        let Some(direct_qp) = &self.direct_qps.direct_qp else {
            return Err(libc::ENOTCONN);
        };
        let into =
            (!self.immediate).then(|| (self.control.notice(slot), self.control.said.local_key()));
        // SAFETY: the buffer lives as long as the queue pair: `control` is dropped after it.
        unsafe { direct_qp.pair.receive(slot, into) }
    }

    /// Fails the queue pair, and has the control thread destroy it.
    pub(crate) fn fail_direct_qp(&mut self) {
        self.direct_is_down();
        if self.direct_qps.direct_qp.is_some()
            && !core::mem::replace(&mut self.direct_qps.failed, true)
        {
            self.notes.push_back(Note::DirectQp(None));
        }
    }

    /// No direct transfer is under way any more: what the ring has of those may be free.
    fn direct_is_down(&mut self) {
        self.pump.set_direct(false);
        let endpoint = self.endpoint;
        for stream in 0..self.places.len() {
            endpoint.free(self, stream as u16);
        }
    }

    /// True if a direct-only stream waits for a buffer, and none did before.
    pub(crate) fn starts_to_starve(&mut self) -> bool {
        !self.direct_qps.starve
            && self.pump.only_direct()
            && self.lost.is_none()
            && self.pump.starved().next().is_some()
            && !core::mem::replace(&mut self.direct_qps.starve, true)
    }

    /// Direct transfers posted so far.
    #[must_use]
    pub const fn direct_shots(&self) -> u64 {
        self.direct_qps.shots
    }

    /// Those that are complete, or lost: all, if none is under way.
    #[must_use]
    pub fn direct_landed(&self) -> u64 {
        if self.pump.direct_outstanding() == 0 {
            u64::MAX
        } else {
            self.direct_qps.landed
        }
    }

    /// Called at even intervals: fails the queue pair if its transfers do not complete.
    pub(crate) fn tick_direct_qp(&mut self) {
        let direct_qps = &mut self.direct_qps;
        let (asked, came) = direct_qps.looked;
        let stuck = came == direct_qps.landed && asked > came;
        direct_qps.stuck = if stuck { direct_qps.stuck + 1 } else { 0 };
        direct_qps.looked = (direct_qps.shots, direct_qps.landed);
        if direct_qps.stuck >= TICKS {
            self.fail_direct_qp();
        }
    }

    /// Registers memory of the program, for the peer to write to.
    ///
    /// # Safety
    /// That of [`Domain::lend`](sluice_fabric::verbs::device::Domain::lend).
    ///
    /// # Errors
    /// The device's.
    pub unsafe fn lend_out(&self, at: *mut u8, len: usize) -> Result<Region, Errno> {
        // SAFETY: this function has the contract of `Domain::lend`.
        unsafe { self.domain.lend(at, len) }
    }
}

impl Endpoint {
    /// Makes the queue pair, for an id with a resolved route or from a connection request.
    ///
    /// # Errors
    /// EBUSY: there is one; ENOTCONN; the device's.
    pub fn begin_direct_qp(&'static self, id: Id) -> Result<(), Errno> {
        let mut refused = None;
        let begun = self.inside(|inner| {
            if inner.direct_qps.direct_qp.is_some() || inner.lost.is_some() {
                return Err(libc::EBUSY);
            }
            let mut share = inner.share.beside()?;
            let pair = share.pair(&id, &inner.domain, SHAPE)?;
            share.enter(pair.number(), self)?;
            // What the last one had under way is over.
            let shots = inner.direct_qps.shots;
            inner.direct_qps.landed = shots;
            inner.direct_qps.looked = (shots, shots);
            inner.direct_qps.direct_qp = Some(DirectQp {
                pair,
                id,
                share,
                stands: false,
            });
            inner.direct_qps.failed = false;
            inner.pump.begin_direct();
            let mut slots = 0..u64::from(DIRECT_RECEIVES);
            let begun = slots.try_for_each(|slot| inner.receive_direct(slot));
            if begun.is_err() {
                refused = inner.direct_qps.direct_qp.take();
            }
            begun
        });
        drop(refused);
        begun.unwrap_or(Err(libc::ENOTCONN))
    }

    /// Runs `f` on the connection of the queue pair.
    pub fn with_direct_qp<R>(&self, f: impl FnOnce(&Id) -> R) -> Option<R> {
        self.inside(|inner| {
            inner
                .direct_qps
                .direct_qp
                .as_ref()
                .map(|direct_qp| f(&direct_qp.id))
        })
        .flatten()
    }

    /// The connection of the queue pair is established.
    pub fn direct_qp_stands(&self) {
        self.work(true, |_, inner| {
            if let Some(direct_qp) = &mut inner.direct_qps.direct_qp
                && !inner.direct_qps.failed
            {
                if inner.immediate {
                    direct_qp.pair.be_ready_soon();
                }
                direct_qp.stands = true;
                inner.direct_qps.wanted = false;
                inner.pump.set_direct(true);
            }
            Ok(())
        });
        // Waiting receives could not advertise their buffers until now, and direct-only mode needs
        // it.
        if super::mode::mode() == sluice_stream::Mode::Direct
            && let Some([near, _]) = self.links()
        {
            for stream in self.streams() {
                if let Some([_, into]) = self.directions(stream) {
                    let waiters = into.rx_wishes.waiters.load(Ordering::SeqCst);
                    users::with(|users| (users.wake_threads)(near, waiters, u32::from(stream)));
                }
            }
        }
    }

    /// The connection failed, or the queue pair has: destroys it. Another may be made after a wait.
    pub fn end_direct_qp(&self) {
        self.work(true, |_, inner| {
            inner.direct_is_down();
            // Completions that are still to be taken count no more.
            inner.direct_qps.failed = true;
            Ok(())
        });
        let direct_qp = self.inside(|inner| {
            let direct_qps = &mut inner.direct_qps;
            let wait = WAIT_NS << direct_qps.losses.min(LOSSES);
            (direct_qps.wanted, direct_qps.failed) = (false, false);
            (direct_qps.losses, direct_qps.again_ns) =
                (direct_qps.losses + 1, sys::now_ns() + wait);
            direct_qps.direct_qp.take()
        });
        if let Some(direct_qp) = direct_qp.flatten() {
            direct_qp.pair.fail();
            if direct_qp.stands && direct_qp.id.is_port_active() {
                direct_qp.id.disconnect();
            }
            // Destroying it waits for the kernel, so not under the lock.
            drop(direct_qp);
        }
    }

    /// The peer or the device has ended the connection of the queue pair.
    pub fn lose_direct_qp(&self) {
        self.work(true, |_, inner| {
            inner.fail_direct_qp();
            Ok(())
        });
    }

    /// True if a device's asynchronous event is about this queue pair.
    pub fn is_direct_qp_met_by(&self, device: Device, trouble: Trouble) -> bool {
        let Trouble::Pair(number) = trouble else {
            return false;
        };
        let met = self.inside(|inner| {
            let direct_qp = inner.direct_qps.direct_qp.as_ref();
            inner.is_on(device)
                && direct_qp.is_some_and(|direct_qp| direct_qp.pair.number() == number)
        });
        met == Some(true)
    }

    /// A direct transfer could be made with a queue pair: has the control thread make one.
    pub fn want_direct_qp(&self) {
        self.work(true, |_, inner| {
            let direct_qps = &mut inner.direct_qps;
            let free =
                direct_qps.direct_qp.is_none() && !direct_qps.wanted && direct_qps.losses < LOSSES;
            if free && inner.lost.is_none() && sys::now_ns() >= direct_qps.again_ns {
                direct_qps.wanted = true;
                inner.notes.push_back(Note::DirectQp(None));
            }
            Ok(())
        });
    }

    /// True if direct transfers can be made.
    pub fn has_direct_qp(&self) -> bool {
        self.inside(|inner| inner.pump.has_direct()) == Some(true)
    }

    /// What the control thread must do: destroy the queue pair; make one.
    pub fn direct_qp_news(&self) -> (bool, bool) {
        self.inside(|inner| {
            let direct_qps = &inner.direct_qps;
            (
                direct_qps.failed,
                direct_qps.wanted && direct_qps.direct_qp.is_none(),
            )
        })
        .unwrap_or_default()
    }

    /// Direct-only streams that wait for a buffer that the peer does not lend, and have waited
    /// since the last call. `before` keeps the waiting streams for the next call.
    pub fn starved(&self, before: &mut Vec<(u16, Seq)>) -> Vec<u16> {
        let now = self.inside(|inner| {
            let all: Vec<_> = inner
                .pump
                .starved()
                .filter(|_| inner.lost.is_none())
                .collect();
            inner.direct_qps.starve = !all.is_empty();
            all
        });
        let now = now.unwrap_or_default();
        let waits = |seen: &(u16, Seq)| before.contains(seen).then_some(seen.0);
        let starved = now.iter().filter_map(waits).collect();
        *before = now;
        starved
    }
}
