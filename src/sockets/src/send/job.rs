//! What all kinds of sends share: progress, waits and outcomes.

use super::{Room, finish};
use crate::demote::{self, Which};
use crate::io_wait::{IoWait, Waited};
use crate::socket::{Known, Socket};
use crate::verdict::{Error, Verdict};
use crate::wait;
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::lock::Section;
use sluice_fabric::sys::{self, Ends, Ran};
use sluice_runtime::thread;

/// A send in progress.
pub(crate) struct Job {
    pub sock: &'static Socket,
    pub fd: c_int,
    pub flags: c_int,
    /// Count of handlers that had run when the call began.
    pub ran: Ran,
    pub done: usize,
    pub deadline: Option<u64>,
    /// In direct-only mode: when the wait for an ADVERT ends.
    pub patience: Option<u64>,
    /// The socket, noted before the call's first wait, or before it first went on without the lock.
    pub known: Option<Known>,
    /// The call has waited for room.
    pub waited: bool,
}

impl Job {
    /// Notes the socket before a wait, or before going on without the lock. Call under the tx lock.
    pub fn note(&mut self) {
        if self.known.is_none() {
            self.known = Some(Known::of(self.sock));
        }
    }

    /// See [`IoWait::is_lost`].
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.known.is_some_and(|known| !known.is_open())
    }

    /// How a call ends whose socket was closed meanwhile. TCP would go on with the call, but most
    /// programs that want it to end shut the socket down first: then it fails with EPIPE, as on
    /// TCP.
    #[cold]
    pub(super) fn lost(&self) -> Verdict {
        if self.done != 0 {
            return Verdict::Done(self.done as isize);
        }
        Verdict::Failed(if self.known.is_some_and(Known::was_shut) {
            Error::BrokenPipe { raise: true }
        } else {
            Error::Reset
        })
    }

    /// Hands the call's progress to the hook's sleep, and to the engine after it.
    pub(super) fn leave_word(&self, io_wait: &mut IoWait) {
        io_wait.ran = self.ran;
        io_wait.done = self.done;
        io_wait.deadline = self.deadline.unwrap_or(0);
        io_wait.known = self.known;
    }

    /// The handlers that end the call where it would wait.
    pub fn ends(&self) -> Ends {
        thread::ends(self.ran, self.done, self.deadline.is_some())
    }

    /// Returns whether a handler has ended the call: one has run, and the kernel, which does not
    /// know that, would now wait.
    pub fn is_interrupted(&self) -> bool {
        let would_wait = || sys::poll_one(self.fd, libc::POLLOUT, Some(sys::timespec(0))) == Ok(0);
        self.ends().have_run() && !self.is_nonblocking() && would_wait()
    }

    /// Returns whether the call must not wait.
    pub(crate) fn is_nonblocking(&self) -> bool {
        !self.sock.may_wait(self.fd, self.flags)
    }

    /// When SO_SNDTIMEO runs out; fixed at the call's first wait.
    pub fn deadline(&mut self) -> Option<u64> {
        let timeout = self.sock.snd_timeout_ns.load(Ordering::Relaxed);
        if timeout != 0 && self.deadline.is_none() {
            self.deadline = Some(sys::now_ns().saturating_add(timeout));
        }
        self.deadline
    }

    /// When a wait for an ADVERT ends: at the socket's timeout or when our patience is over.
    pub fn until(&mut self) -> u64 {
        let patience = *self
            .patience
            .get_or_insert_with(|| sys::now_ns() + wait::full_ns(self.sock));
        self.deadline().map_or(patience, |d| d.min(patience))
    }

    /// Returns whether the wait for an ADVERT is over. The patience begins with the first question.
    /// After it TCP takes the bytes, or reports that it has no room.
    pub(crate) fn out_of_patience(&mut self) -> bool {
        sys::now_ns() >= self.until()
    }

    /// Waits, or says why the call ends. Called with the tx lock held; releases it.
    pub(super) fn pause(
        &mut self,
        section: Section<'_>,
        room: Room,
        mut io_wait: Option<&mut IoWait>,
    ) -> Option<Verdict> {
        let Job { sock, fd, .. } = *self;
        let over = match room {
            Room::Again => return None,
            Room::Leaves(reason) => {
                drop(section);
                demote::demote(sock, Which::Rx, reason);
                return None;
            }
            Room::Shut => Some(Error::BrokenPipe { raise: true }),
            _ => None,
        };
        if let Some(error) = over {
            drop(section);
            return Some(self.partly(error));
        }
        if self.is_nonblocking() {
            if matches!(room, Room::Resending | Room::Held) {
                wait::ask_for_tcp_room(sock);
            }
            if matches!(room, Room::Full) && !wait::ask_for_space(sock) {
                // Space came while we asked.
                return None;
            }
            drop(section);
            return Some(self.partly(Error::WouldBlock));
        }
        self.note();
        self.deadline();
        self.waited = true;
        if let Some(io_wait) = &mut io_wait {
            self.leave_word(io_wait);
        }
        let (deadline, ends) = (self.deadline, self.ends());
        let waited = match room {
            Room::Full => wait::for_space(section, sock, deadline, ends, io_wait),
            Room::Held => wait::for_link(section, sock, deadline, ends, io_wait),
            _ => wait::for_tcp_room(section, fd, deadline, ends, io_wait),
        };
        match waited {
            Waited::News => {
                self.ran = thread::gone_on(self.ran, self.done, self.deadline.is_some());
                None
            }
            Waited::Parked => Some(Verdict::Block),
            Waited::Interrupted => Some(self.partly(Error::Interrupted)),
            Waited::TimedOut => Some(self.partly(Error::WouldBlock)),
        }
    }

    /// How a call ends that was reset in the middle. TCP takes at once what its buffer holds, and
    /// learns of the RST later, so a call that fits reports all; a call that has waited reports how
    /// far it came.
    #[cold]
    pub(super) fn cut_off(&self, total: usize) -> Verdict {
        let buffer = || sys::getsockopt::<i32>(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF);
        if self.done != 0 && !self.waited && buffer().is_ok_and(|n| total <= n.max(0) as usize) {
            return finish(self.sock, total);
        }
        self.partly(Error::Reset)
    }

    pub(super) fn partly(&self, error: Error) -> Verdict {
        if self.done == 0 {
            Verdict::Failed(error)
        } else {
            finish(self.sock, self.done)
        }
    }
}
