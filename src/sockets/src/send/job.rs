//! A send going on.

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

/// A send going on.
pub(crate) struct Job {
    pub sock: &'static Socket,
    pub fd: c_int,
    pub flags: c_int,
    /// Handlers that had run when the call began.
    pub ran: Ran,
    pub done: usize,
    pub deadline: Option<u64>,
    /// In direct-only mode, when the wait for an ADVERT ends.
    pub patience: Option<u64>,
    /// As of before its first wait, or before it first went on without the lock.
    pub known: Option<Known>,
    /// Has it waited for room?
    pub waited: bool,
}

impl Job {
    /// Under the tx lock: the call is about to wait, or to go on without the lock.
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

    /// How a call ends whose socket was closed under it. TCP would go on with it; where the program
    /// has shut the socket down before, as most do that want the call to end, it says so.
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

    /// What the edge's sleep, and the engine after it, must know.
    pub(super) fn leave_word(&self, io_wait: &mut IoWait) {
        io_wait.ran = self.ran;
        io_wait.done = self.done;
        io_wait.deadline = self.deadline.unwrap_or(0);
        io_wait.known = self.known;
    }

    /// Which handlers end the call where it would wait.
    pub fn ends(&self) -> Ends {
        thread::ends(self.ran, self.done, self.deadline.is_some())
    }

    /// The call is the kernel's to go on with, which knows nothing of handlers that have run: has
    /// one ended it, since it would wait?
    pub fn is_interrupted(&self) -> bool {
        let would_wait = || sys::poll_one(self.fd, libc::POLLOUT, Some(sys::timespec(0))) == Ok(0);
        self.ends().have_run() && !self.is_nonblocking() && would_wait()
    }

    /// May the call not wait?
    pub(crate) fn is_nonblocking(&self) -> bool {
        !self.sock.may_wait(self.fd, self.flags)
    }

    /// The time at which SO_SNDTIMEO runs out, fixed at the first wait of a call.
    pub fn deadline(&mut self) -> Option<u64> {
        let timeout = self.sock.snd_timeout_ns.load(Ordering::Relaxed);
        if timeout != 0 && self.deadline.is_none() {
            self.deadline = Some(sys::now_ns().saturating_add(timeout));
        }
        self.deadline
    }

    /// When a wait for an ADVERT ends: by the socket's timeout or with our own patience.
    pub fn until(&mut self) -> u64 {
        let patience = *self
            .patience
            .get_or_insert_with(|| sys::now_ns() + wait::full_ns(self.sock));
        self.deadline().map_or(patience, |d| d.min(patience))
    }

    /// Is the patience with a reader that makes no ADVERT over, or the program's own? It begins
    /// with the first question. TCP takes bytes then that no reader waits for, or says itself that
    /// it has no room.
    pub(crate) fn out_of_patience(&mut self) -> bool {
        sys::now_ns() >= self.until()
    }

    /// Under the tx lock, which it gives back: waits, or says why not.
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
            Room::Lost => Some(Error::Reset),
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
                // Space came up while we asked.
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

    /// The connection was reset after a part of the call. TCP takes in one go what its buffer
    /// holds, and hears of a reset after that; a call that has waited for room tells how far it
    /// came.
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
