//! A link's queue pair for direct transfers (`stream/src/pump/direct.rs`), made when the first is
//! wanted. Its loss costs only the transfers under way: the link and its streams live on.

use super::endpoint::Endpoint;
use super::endpoint_state::EndpointState;
use super::queue::Share;
use super::terms::{BATCH, Lost, Note, TICKS};
use super::users;
use core::sync::atomic::Ordering;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::cm::Id;
use sluice_fabric::verbs::device::{Device, Region, Trouble};
use sluice_fabric::verbs::queue::{News, Pair, Shape, Shot};
use sluice_stream::Seq;
use sluice_stream::pump::What;

/// Fewer than 16 direct transfers are under way at once, and each is at most three work requests.
const SHAPE: Shape = Shape {
    sends: 3 * 16,
    receives: 1,
    inline: 0,
};

/// Losses after which this end asks for no other, and the wait after the first; each later wait is
/// twice as long.
const LOSSES: u32 = 6;
const WAIT_NS: u64 = 200_000_000;

/// See the [module](self).
#[derive(Debug)]
pub struct Lane {
    // Drop order: the queue pair before its connection and its completion queue.
    pair: Pair,
    id: Id,
    share: Share,
    stands: bool,
}

/// An endpoint's queue pair for direct transfers, and its losses.
#[derive(Debug, Default)]
pub struct Lanes {
    lane: Option<Lane>,
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
    pub fn shoot(&mut self, what: What) {
        let What::Direct {
            stream,
            from,
            len,
            to,
        } = what
        else {
            return;
        };
        let place = self.places.get(usize::from(stream)).copied().flatten();
        let lane = self.lanes.lane.as_ref();
        let (Some(place), Some(lane)) = (place, lane) else {
            return self.fail_lane();
        };
        let at = from.value() & u64::from(place.staging_len - 1);
        let first = u64::from(len).min(u64::from(place.staging_len) - at) as u32;
        let base = place.staging.at.cast_const();
        let shot = Shot {
            from: [(base.wrapping_add(at as usize), first), (base, len - first)],
            key: place.staging.local_key,
            to,
            read: self.proof(),
            mark: 1,
        };
        self.lanes.shots += 1;
        // SAFETY: bytes in the staging ring stay until the peer has credited them. The sink of the
        // READ and the control slots live as long as the queue pair.
        if unsafe { lane.pair.write(&shot) }.is_err() {
            self.fail_lane();
        }
    }

    /// Takes completions of direct transfers.
    pub fn take_lane(&mut self) -> Result<(), Lost> {
        loop {
            let Some(lane) = &self.lanes.lane else {
                return Ok(());
            };
            let mut batch = [News::Failed { status: 0 }; BATCH];
            let taken = lane.share.queue.take(&lane.share, &mut batch, false);
            self.rest |= taken.rest;
            for news in batch.iter().take(taken.count) {
                match news {
                    News::Done { .. } if !self.lanes.failed => {
                        self.lanes.landed += 1;
                        self.pump.on_direct_done(1)?;
                    }
                    News::Failed { .. } => self.fail_lane(),
                    _ => {}
                }
            }
            if !taken.more {
                return Ok(());
            }
        }
    }

    /// Fails the queue pair, and has the control thread destroy it.
    pub(crate) fn fail_lane(&mut self) {
        self.pump.set_direct(false);
        if self.lanes.lane.is_some() && !core::mem::replace(&mut self.lanes.failed, true) {
            self.notes.push_back(Note::Lane(None));
        }
    }

    /// True if a direct-only stream waits for a buffer, and none did before.
    pub(crate) fn starts_to_starve(&mut self) -> bool {
        !self.lanes.starve
            && self.pump.only_direct()
            && self.lost.is_none()
            && self.pump.starved().next().is_some()
            && !core::mem::replace(&mut self.lanes.starve, true)
    }

    /// Called at even intervals: fails the queue pair if its transfers do not complete.
    pub(crate) fn tick_lane(&mut self) {
        let lanes = &mut self.lanes;
        let (asked, came) = lanes.looked;
        let stuck = came == lanes.landed && asked > came;
        lanes.stuck = if stuck { lanes.stuck + 1 } else { 0 };
        lanes.looked = (lanes.shots, lanes.landed);
        if lanes.stuck >= TICKS {
            self.fail_lane();
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
    pub fn begin_lane(&'static self, id: Id) -> Result<(), Errno> {
        let begun = self.inside(|inner| {
            if inner.lanes.lane.is_some() || inner.lost.is_some() {
                return Err(libc::EBUSY);
            }
            let mut share = inner.share.beside()?;
            let pair = share.pair(&id, &inner.domain, SHAPE)?;
            share.enter(pair.number(), self)?;
            (inner.lanes.shots, inner.lanes.landed, inner.lanes.looked) = (0, 0, (0, 0));
            inner.lanes.lane = Some(Lane {
                pair,
                id,
                share,
                stands: false,
            });
            inner.lanes.failed = false;
            Ok(())
        });
        begun.unwrap_or(Err(libc::ENOTCONN))
    }

    /// Runs `f` on the connection of the queue pair.
    pub fn with_lane<R>(&self, f: impl FnOnce(&Id) -> R) -> Option<R> {
        self.inside(|inner| inner.lanes.lane.as_ref().map(|lane| f(&lane.id)))
            .flatten()
    }

    /// The connection of the queue pair is established.
    pub fn lane_stands(&self) {
        self.work(true, |_, inner| {
            if let Some(lane) = &mut inner.lanes.lane
                && !inner.lanes.failed
            {
                lane.stands = true;
                inner.lanes.wanted = false;
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
    pub fn end_lane(&self) {
        self.work(true, |_, inner| {
            inner.pump.set_direct(false);
            Ok(())
        });
        let lane = self.inside(|inner| {
            let lanes = &mut inner.lanes;
            let wait = WAIT_NS << lanes.losses.min(LOSSES);
            (lanes.wanted, lanes.failed) = (false, false);
            (lanes.losses, lanes.again_ns) = (lanes.losses + 1, sys::now_ns() + wait);
            lanes.lane.take()
        });
        if let Some(lane) = lane.flatten() {
            lane.pair.fail();
            if lane.stands && lane.id.is_port_active() {
                lane.id.disconnect();
            }
            // Destroying it waits for the kernel, so not under the lock.
            drop(lane);
        }
    }

    /// The peer or the device has ended the connection of the queue pair.
    pub fn lose_lane(&self) {
        self.work(true, |_, inner| {
            inner.fail_lane();
            Ok(())
        });
    }

    /// True if a device's asynchronous event is about this queue pair.
    pub fn is_lane_met_by(&self, device: Device, trouble: Trouble) -> bool {
        let Trouble::Pair(number) = trouble else {
            return false;
        };
        let met = self.inside(|inner| {
            let lane = inner.lanes.lane.as_ref();
            inner.is_on(device) && lane.is_some_and(|lane| lane.pair.number() == number)
        });
        met == Some(true)
    }

    /// A direct transfer could be made with a queue pair: has the control thread make one.
    pub fn want_lane(&self) {
        self.work(true, |_, inner| {
            let lanes = &mut inner.lanes;
            let free = lanes.lane.is_none() && !lanes.wanted && lanes.losses < LOSSES;
            if free && inner.lost.is_none() && sys::now_ns() >= lanes.again_ns {
                lanes.wanted = true;
                inner.notes.push_back(Note::Lane(None));
            }
            Ok(())
        });
    }

    /// True if direct transfers can be made.
    pub fn has_lane(&self) -> bool {
        self.inside(|inner| inner.pump.has_direct()) == Some(true)
    }

    /// What the control thread must do: destroy the queue pair; make one.
    pub fn lane_news(&self) -> (bool, bool) {
        self.inside(|inner| {
            let lanes = &inner.lanes;
            (lanes.failed, lanes.wanted && lanes.lane.is_none())
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
            inner.lanes.starve = !all.is_empty();
            all
        });
        let now = now.unwrap_or_default();
        let waits = |seen: &(u16, Seq)| before.contains(seen).then_some(seen.0);
        let starved = now.iter().filter_map(waits).collect();
        *before = now;
        starved
    }
}
