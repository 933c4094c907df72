//! The queue pair of direct transfers, that a link gets when the first is wanted:
//! `stream/src/pump/direct.rs`. Its loss costs what was under way there, and neither the link nor a
//! stream.

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

/// Direct transfers under way at once are fewer; each may be three requests.
const SHAPE: Shape = Shape {
    sends: 3 * 16,
    receives: 1,
    inline: 0,
};

/// After so many losses a link makes do without; after each a wait that doubles.
const LOSSES: u32 = 6;
const WAIT_NS: u64 = 200_000_000;

/// See the [module](self).
#[derive(Debug)]
pub struct Lane {
    // In the order in which they must go.
    pair: Pair,
    id: Id,
    share: Share,
    stands: bool,
}

/// What an endpoint has of it.
#[derive(Debug, Default)]
pub struct Lanes {
    lane: Option<Lane>,
    losses: u32,
    /// Not before then.
    again_ns: u64,
    /// The control thread was asked for one.
    wanted: bool,
    /// It works no more, and is to be put away.
    failed: bool,
    /// Transfers asked for and those that came to an end; as of the last look; looks in vain.
    pub shots: u64,
    pub landed: u64,
    pub looked: (u64, u64),
    pub stuck: u8,
    /// Streams were found to starve: see [`Endpoint::starved`].
    starve: bool,
}

impl EndpointState {
    /// Gives a direct transfer to the device.
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
        // SAFETY: staging bytes stay until they are credited; the sink and the slots as long as the
        // queue pair.
        if unsafe { lane.pair.write(&shot) }.is_err() {
            self.fail_lane();
        }
    }

    /// What has come of direct transfers.
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

    /// It works no more.
    pub(crate) fn fail_lane(&mut self) {
        self.pump.set_direct(false);
        if self.lanes.lane.is_some() && !core::mem::replace(&mut self.lanes.failed, true) {
            self.notes.push_back(Note::Lane(None));
        }
    }

    /// Does a stream of which all goes directly wait for a buffer, since now?
    pub(crate) fn starts_to_starve(&mut self) -> bool {
        !self.lanes.starve
            && self.pump.only_direct()
            && self.lost.is_none()
            && self.pump.starved().next().is_some()
            && !core::mem::replace(&mut self.lanes.starve, true)
    }

    /// Whether transfers come to an end: called at even intervals.
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

    /// Registers memory of the program's for the peer to write to.
    ///
    /// # Safety
    /// As [`Domain::lend`](sluice_fabric::verbs::device::Domain::lend).
    ///
    /// # Errors
    /// As there.
    pub unsafe fn lend_out(&self, at: *mut u8, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller's word.
        unsafe { self.domain.lend(at, len) }
    }
}

impl Endpoint {
    /// Makes the queue pair of an id that is routed, or was asked for.
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

    /// Does something to its connection.
    pub fn with_lane<R>(&self, f: impl FnOnce(&Id) -> R) -> Option<R> {
        self.inside(|inner| inner.lanes.lane.as_ref().map(|lane| f(&lane.id)))
            .flatten()
    }

    /// Its connection stands.
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
        // Recvs that wait could not lend their buffers. Where all goes directly they have to.
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

    /// It did not come to be, or works no more: another may be made after a while.
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
            // Waits for the kernel: not under the lock.
            drop(lane);
        }
    }

    /// Its peer, or the device, has ended it.
    pub fn lose_lane(&self) {
        self.work(true, |_, inner| {
            inner.fail_lane();
            Ok(())
        });
    }

    /// Is this, that a device tells, of the queue pair?
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

    /// A direct transfer could be made if there were one: the control thread sees to it.
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

    /// Can direct transfers be made?
    pub fn has_lane(&self) -> bool {
        self.inside(|inner| inner.pump.has_direct()) == Some(true)
    }

    /// What the control thread is to do: put one away, make one.
    pub fn lane_news(&self) -> (bool, bool) {
        self.inside(|inner| {
            let lanes = &inner.lanes;
            (lanes.failed, lanes.wanted && lanes.lane.is_none())
        })
        .unwrap_or_default()
    }

    /// A direct-only stream waits for a buffer that nobody lends: those that have waited since the
    /// last look.
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
