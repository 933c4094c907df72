//! A descriptor that several threads write to and any of them may close.
//!
//! A thread that has read its number and is then put off the CPU must not find another descriptor
//! there: the byte that rings a doorbell would go into a connection of the program. So a use and
//! the closing exclude each other.

use crate::lock::Lock;
use crate::sys::Fd;
use core::sync::atomic::{AtomicI32, Ordering};

/// Room for one descriptor. Calls on it do not block, since others wait for their end.
#[derive(Debug, Default)]
pub struct SharedFd {
    lock: Lock,
    /// The number plus one; 0: none. Negative: closed in a signal handler that interrupted this
    /// thread's use, at whose end it is done.
    cell: AtomicI32,
}

impl SharedFd {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            cell: AtomicI32::new(0),
        }
    }

    /// Is there one?
    #[inline]
    pub fn is_open(&self) -> bool {
        self.cell.load(Ordering::Acquire) > 0
    }

    /// The number, for a caller that knows by other means that it is not closed meanwhile.
    #[inline]
    pub fn raw(&self) -> Option<i32> {
        let cell = self.cell.load(Ordering::Acquire);
        (cell > 0).then(|| cell - 1)
    }

    /// Puts `fd` in; gets it back if there is one already.
    pub fn offer(&self, fd: Fd) -> Result<(), Fd> {
        match self
            .cell
            .compare_exchange(0, fd.raw() + 1, Ordering::AcqRel, Ordering::Relaxed)
        {
            Ok(_) => {
                let _ = fd.release();
                Ok(())
            }
            Err(_) => Err(fd),
        }
    }

    /// Makes a call on the descriptor; `None`: there is none.
    pub fn with<R>(&self, call: impl FnOnce(i32) -> R) -> Option<R> {
        self.with_any(|fd| fd.map(call))
    }

    /// Makes a call on the descriptor, if there is one.
    pub fn with_any<R>(&self, call: impl FnOnce(Option<i32>) -> R) -> R {
        // Nested in a use of this thread: that one keeps it open.
        let section = self.lock.enter();
        let done = call(self.raw());
        if section.is_ok() && self.cell.load(Ordering::Relaxed) < 0 {
            let cell = self.cell.swap(0, Ordering::AcqRel);
            drop(Fd::own(-cell - 1));
        }
        done
    }

    /// Closes the descriptor, when `last` has been told its number; false: there was none.
    pub fn close(&self, last: impl FnOnce(i32)) -> bool {
        let Ok(section) = self.lock.enter() else {
            let open = self.raw();
            if let Some(fd) = open {
                last(fd);
                self.cell.store(-fd - 1, Ordering::Release);
            }
            return open.is_some();
        };
        let cell = self.cell.swap(0, Ordering::AcqRel);
        drop(section);
        if cell > 0 {
            last(cell - 1);
        }
        // Nobody uses it by now, and nobody finds it.
        if cell != 0 {
            drop(Fd::own(cell.abs() - 1));
        }
        cell > 0
    }

    /// In the child of a fork: threads that were using it do not exist here.
    pub fn after_fork(&self) {
        self.lock.reset_if_others();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use core::sync::atomic::AtomicBool;

    fn pipe() -> (Fd, Fd) {
        sys::doorbell().unwrap()
    }

    #[test]
    fn an_offer_is_taken_once() {
        let shared = SharedFd::new();
        assert!(!shared.is_open() && shared.with(|_| ()).is_none());
        let (near, _far) = pipe();
        let number = near.raw();
        shared.offer(near).unwrap();
        assert_eq!(shared.with(|fd| fd), Some(number));
        let (other, _far) = pipe();
        assert!(shared.offer(other).is_err());
        let mut told = None;
        assert!(shared.close(|fd| told = Some(fd)));
        assert_eq!(told, Some(number));
        assert!(!shared.close(|_| panic!("there is none")));
    }

    #[test]
    fn closed_within_a_use_it_is_open_until_that_is_over() {
        let shared = SharedFd::new();
        let (near, _far) = pipe();
        shared.offer(near).unwrap();
        // As a signal handler does that comes in the middle.
        #[inline(never)]
        fn handler(shared: &SharedFd) {
            assert!(shared.close(|_| ()));
            assert!(!shared.is_open());
        }
        shared.with(|fd| {
            handler(&shared);
            assert!(sys::fstat(fd).is_ok());
        });
        assert!(shared.with(|_| ()).is_none());
        let (near, _far) = pipe();
        assert!(shared.offer(near).is_ok(), "room again");
    }

    #[test]
    fn nothing_is_written_to_a_number_that_another_has_by_now() {
        let shared = SharedFd::new();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    shared.with(|fd| sys::write(fd, b"!"));
                }
            });
            for _ in 0..20_000 {
                let (near, _far) = pipe();
                shared.offer(near).unwrap();
                shared.close(|_| ());
                // The lowest number free is the one just closed.
                let (near, far) = pipe();
                std::thread::yield_now();
                let mut byte = [0];
                let read = sys::read(far.raw(), &mut byte);
                assert_eq!(read, Err(libc::EAGAIN), "rung: {}", near.raw());
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
