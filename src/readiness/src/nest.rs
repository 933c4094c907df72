//! A set inside another set, or in poll and select.
//!
//! A watcher of a set sees in the kernel whether that is readable. So a watched set announces
//! sleep for good: each of the news rings its doorbell, which makes it readable until a wait on the
//! set has taken the doorbell's event, and the end of each wait rings if something is left to tell.
//! The set may therefore be readable with nothing to tell: then the wait on it finds nothing.

use super::interest_list::OnLink;
use super::set::Set;
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// Rings that are taken out of one doorbell at once: more than a socket holds.
const RINGS: u32 = 1024;

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl Set {
    /// Another set or a poll watches this one: news ring at once, whether or not a thread waits.
    pub fn is_nested(&'static self) {
        if !self.nested.swap(true, Ordering::SeqCst) {
            self.shows_itself();
            self.silence_twins();
            self.shows_news();
        }
    }

    /// What a ring has told once the kernel's registration is not to show.
    fn silence_twins(&self) {
        self.with(|state| {
            for at in 0..state.places() {
                if let Some(reg) = state.reg(at).filter(|reg| reg.twin_armed) {
                    reg.change(self.fd(), ONESHOT);
                }
            }
        });
    }

    /// A watched set becomes readable with the next news, and now if there are some.
    pub(super) fn shows_news(&'static self) {
        // A parent's is the parent's to ring: this process knows nothing of what there is to tell.
        if self.wake.is_open() && !self.inherited.load(Ordering::Relaxed) {
            self.announce_and_look();
            if self.would_tell() {
                self.ring();
            }
        }
    }

    /// Empties the doorbells, so that they do not make the kernel's set readable.
    pub(super) fn silence(&self) {
        let mut bytes = [0u8; 4096];
        self.wake.with(|fd| sys::read(fd, &mut bytes));
        self.with(|state| {
            for on in &mut state.links {
                self.empty(on);
            }
        });
    }

    /// The peer has found the doorbell of the slot full.
    pub fn empty_bell(&self, link: &'static Link, slot: u32) {
        self.with(|state| {
            let on = state.on_link(link);
            if let Some(on) = on.filter(|on| on.slot == slot) {
                self.empty(on);
            }
        });
    }

    /// Takes the rings out of a doorbell, which never waits: nobody else has its description. A
    /// peer that fills it as fast as it is emptied is left to it.
    fn empty(&self, on: &mut OnLink) {
        let mut bytes = [0u8; 4096];
        for _ in 0..RINGS {
            let Some(bell) = &on.bell else { break };
            match sys::read(bell.raw(), &mut bytes) {
                Ok(0) => self.take_bell_out(on),
                // A socket whose other end went away with something unread says so once.
                Ok(_) | Err(libc::ECONNRESET) => {}
                Err(_) => break,
            }
        }
    }
}
