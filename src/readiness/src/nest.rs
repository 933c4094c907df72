//! A set that another set watches, or a poll or select.
//!
//! The watcher asks the kernel whether the set is readable. So a watched set announces sleep for
//! good: every stream with news rings a doorbell, which makes the kernel's set readable until a
//! wait has taken the doorbell's event. The end of each wait rings again if something is left to
//! tell. The set may therefore be readable with nothing to tell, and a wait on it then finds
//! nothing.

use super::interest_list::OnLink;
use super::set::Set;
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// So many reads at most empty one doorbell: more rings than a socket holds.
const RINGS: u32 = 1024;

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl Set {
    /// Another set or a poll watches this one: from now on news ring even if no thread waits.
    pub fn is_nested(&'static self) {
        if !self.nested.swap(true, Ordering::SeqCst) {
            self.shows_itself();
            self.silence_twins();
            self.shows_news();
        }
    }

    /// Registrations with ONESHOT whose event the ring has told are still armed in the kernel. They
    /// ask it for nothing from now on, so that they do not make the set readable.
    fn silence_twins(&self) {
        self.with(|state| {
            for at in 0..state.places() {
                if let Some(reg) = state.reg(at).filter(|reg| reg.twin_armed) {
                    reg.change(self.fd(), ONESHOT);
                }
            }
        });
    }

    /// Makes a watched set readable if there is something to tell, and announces sleep so that the
    /// next news make it so.
    pub(super) fn shows_news(&'static self) {
        // Only the parent rings an inherited set: this process does not know its streams.
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

    /// Takes the rings out of a doorbell. It is non-blocking, and no other process shares its open
    /// file. It is not emptied for ever where the peer fills it as fast.
    fn empty(&self, on: &mut OnLink) {
        let mut bytes = [0u8; 4096];
        for _ in 0..RINGS {
            let Some(bell) = &on.bell else { break };
            match sys::read(bell.raw(), &mut bytes) {
                Ok(0) => self.take_bell_out(on),
                // A socket whose other end was closed with bytes unread says so once.
                Ok(_) | Err(libc::ECONNRESET) => {}
                Err(_) => break,
            }
        }
    }
}
