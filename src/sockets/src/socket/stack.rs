//! Lock-free stacks of sockets. Any thread may push, also in a signal handler that interrupted
//! malloc: a push takes no lock and no memory. One thread takes everything at once.

use super::Socket;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A socket's place in one stack; zero, not in it, when new.
#[derive(Debug)]
pub struct Place {
    /// True while the socket is in the stack. Set by the pushing thread, cleared by the taking one
    /// (AcqRel), so a thread that finds it set knows that the taker will see what it wrote before.
    inside: AtomicBool,
    next: AtomicPtr<Socket>,
}

/// A stack of sockets, each of which is in it at most once.
pub struct Stack {
    /// SeqCst: one thread pushes and then reads another word; a second one writes that word and
    /// then looks here. At least one of them sees the other.
    head: AtomicPtr<Socket>,
    place: fn(&Socket) -> &Place,
}

impl Stack {
    /// An empty stack. `place` names the field of each socket that belongs to it.
    pub const fn new(place: fn(&Socket) -> &Place) -> Self {
        Self {
            head: AtomicPtr::new(core::ptr::null_mut()),
            place,
        }
    }

    /// Pushes a socket, unless it is in the stack.
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

    /// Takes all sockets. Each may be pushed again before the caller looks at it.
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

    /// Empties the stack in the child of a fork, including sockets that another thread of the
    /// parent was just pushing.
    pub fn clear(&self) {
        self.head.store(core::ptr::null_mut(), Ordering::Relaxed);
        super::for_every(|sock| {
            let inside = &(self.place)(sock).inside;
            // Writes only where needed, so that no other page is copied.
            if inside.load(Ordering::Relaxed) {
                inside.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Returns whether the stack is empty.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst).is_null()
    }
}
