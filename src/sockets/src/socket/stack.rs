//! Stacks of sockets: anybody adds to one, without a lock and without memory, since it may be a
//! signal handler that has interrupted malloc; one thread takes all that is there.

use super::Socket;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A socket's place in one stack. Zero is that of a new one, which is not in it.
#[derive(Debug)]
pub struct Place {
    /// It is there. Set by the thread that adds it, taken back by the one that takes it out
    /// (AcqRel): one that finds it set has left what it wrote before to that thread's look.
    inside: AtomicBool,
    next: AtomicPtr<Socket>,
}

/// A stack of sockets, each of which is in it once at most.
pub struct Stack {
    /// SeqCst: a thread that adds a socket and then reads another word, and the one that writes
    /// that word and then looks here, do not both miss the other.
    head: AtomicPtr<Socket>,
    place: fn(&Socket) -> &Place,
}

impl Stack {
    /// An empty one, of which each socket has its place there.
    pub const fn new(place: fn(&Socket) -> &Place) -> Self {
        Self {
            head: AtomicPtr::new(core::ptr::null_mut()),
            place,
        }
    }

    /// Adds a socket, unless it is there.
    pub fn add(&self, sock: &'static Socket) {
        let place = (self.place)(sock);
        if place.inside.swap(true, Ordering::AcqRel) {
            return;
        }
        let mine = core::ptr::from_ref(sock).cast_mut();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            place.next.store(head, Ordering::Relaxed);
            match self
                .head
                .compare_exchange_weak(head, mine, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all that are there. Each may be added again before it is looked at.
    pub fn take(&self) -> impl Iterator<Item = &'static Socket> {
        let mut next = self.head.swap(core::ptr::null_mut(), Ordering::SeqCst);
        core::iter::from_fn(move || {
            // SAFETY: null, or a structure of the pool, whose memory is never unmapped.
            let sock: &'static Socket = unsafe { next.as_ref() }?;
            let place = (self.place)(sock);
            next = place.next.load(Ordering::Relaxed);
            place.inside.swap(false, Ordering::AcqRel);
            Some(sock)
        })
    }

    /// In the child of a fork: nothing is there, also of what another thread of the parent's was
    /// just adding.
    pub fn clear(&self) {
        self.head.store(core::ptr::null_mut(), Ordering::Relaxed);
        super::for_every(|sock| {
            let inside = &(self.place)(sock).inside;
            // Where there is nothing to write, no page is copied.
            if inside.load(Ordering::Relaxed) {
                inside.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Is nothing there?
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst).is_null()
    }
}
