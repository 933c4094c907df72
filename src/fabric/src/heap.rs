//! Memory for lists and records, also amid the program's `malloc`.
//!
//! Hooks run in signal handlers, and a handler may have interrupted `malloc`: a handler that calls
//! it again, there, hangs or crashes. A lock of our own would be no better, since a handler meets
//! it held by its own thread, a jump out of a handler leaves it held, and a child that was forked
//! past our hooks finds it held by nobody. So there is none: blocks of a size lie on a stack that
//! is changed by one compare-and-swap, and a thread that is interrupted anywhere has at most one
//! block less to give.
//!
//! ```text
//!   32 B, 64 B ... 128 KiB    a stack each; a block is aligned to its size
//!   larger                    a mapping of its own
//! ```
//!
//! What was a block of a size stays one: lists of a program's connections grow and shrink together.

use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The smallest block, and what block addresses are multiples of.
const LEAST_SHIFT: u32 = 5;
/// The largest block.
const MOST_SHIFT: u32 = 17;
const CLASSES: usize = (MOST_SHIFT - LEAST_SHIFT + 1) as usize;
/// Memory comes from the kernel in pieces of this length, aligned to it.
const CHUNK: usize = 256 << 10;
const PAGE: usize = 4096;
/// Addresses of programs are below this, but for those that ask for others.
const ADDRESS_BITS: u32 = 47;
/// A stack's word: the first block's address without its zeroes, and how often the stack was
/// changed, modulo 2^22.
const POINTER_BITS: u32 = ADDRESS_BITS - LEAST_SHIFT;
const POINTER: u64 = (1 << POINTER_BITS) - 1;

/// Memory that a heap begins with, so that small lists need no system call: the program may be one
/// that a filter kills for it. Costs nothing until it is touched.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Room(UnsafeCell<[u8; CHUNK]>);

// SAFETY: reached through the heap's blocks only.
unsafe impl Sync for Room {}

impl Default for Room {
    fn default() -> Self {
        Self::new()
    }
}

impl Room {
    /// Zeroes.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; CHUNK]))
    }
}

/// The allocator. All its memory is one process's.
#[derive(Debug)]
pub struct Heap {
    stacks: [AtomicU64; CLASSES],
    room: Option<&'static Room>,
    /// Bytes of the room in use.
    taken: AtomicUsize,
    /// Where the present chunk is unused from; a multiple of [`CHUNK`]: it is used up, or there is
    /// none.
    fresh: AtomicUsize,
}

/// The class of a block for this layout; `None`: a mapping of its own.
fn class(layout: Layout) -> Option<usize> {
    let len = layout.size().max(layout.align()).max(1 << LEAST_SHIFT);
    let shift = usize::BITS - (len - 1).leading_zeros();
    (shift <= MOST_SHIFT).then(|| (shift - LEAST_SHIFT) as usize)
}

const fn block_len(class: usize) -> usize {
    1 << (class as u32 + LEAST_SHIFT)
}

const fn up(at: usize, to: usize) -> usize {
    (at + to - 1) & !(to - 1)
}

impl Heap {
    /// With this room and no other memory yet.
    #[must_use]
    pub const fn new(room: Option<&'static Room>) -> Self {
        Self {
            stacks: [const { AtomicU64::new(0) }; CLASSES],
            room,
            taken: AtomicUsize::new(0),
            fresh: AtomicUsize::new(0),
        }
    }

    /// Takes the first block off the stack of a class.
    fn pop(&self, class: usize) -> Option<*mut u8> {
        let stack = self.stacks.get(class)?;
        let mut now = stack.load(Ordering::Acquire);
        loop {
            let first = address(now)?;
            // SAFETY: blocks stay mapped. If another has taken this one meanwhile, its user's bytes
            // are read here, which nobody looks at: the stack has changed, and the exchange fails.
            let next = unsafe { link(first) }.load(Ordering::Relaxed);
            let to = word(next, now);
            match stack.compare_exchange_weak(now, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(first as *mut u8),
                Err(changed) => now = changed,
            }
        }
    }

    /// Puts a block on the stack of its class.
    fn push(&self, class: usize, block: usize) {
        let Some(stack) = self.stacks.get(class) else {
            return;
        };
        let mut now = stack.load(Ordering::Relaxed);
        loop {
            // SAFETY: a block that nobody uses, of the caller's.
            unsafe { link(block) }.store(address(now).unwrap_or(0), Ordering::Relaxed);
            let to = word(block, now);
            match stack.compare_exchange_weak(now, to, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => now = changed,
            }
        }
    }

    /// A block that was never used, and to the stack as many more as lie on its page.
    fn make(&self, class: usize) -> *mut u8 {
        let len = block_len(class);
        let slab = len.max(PAGE);
        let Some(at) = self.take(slab) else {
            return null_mut();
        };
        for block in (at + len..at + slab).step_by(len) {
            self.push(class, block);
        }
        at as *mut u8
    }

    /// `len` fresh bytes, aligned to `len`, a power of two.
    fn take(&self, len: usize) -> Option<usize> {
        self.take_of_room(len).or_else(|| self.take_of_chunk(len))
    }

    fn take_of_room(&self, len: usize) -> Option<usize> {
        let base = self.room?.0.get() as usize;
        let mut now = self.taken.load(Ordering::Relaxed);
        loop {
            let start = up(base + now, len);
            let to = start + len - base;
            if to > CHUNK {
                return None;
            }
            match self
                .taken
                .compare_exchange_weak(now, to, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(start),
                Err(changed) => now = changed,
            }
        }
    }

    fn take_of_chunk(&self, len: usize) -> Option<usize> {
        let mut now = self.fresh.load(Ordering::Relaxed);
        loop {
            let start = up(now, len);
            if !now.is_multiple_of(CHUNK) && start + len <= up(now, CHUNK) {
                let to = start + len;
                match self
                    .fresh
                    .compare_exchange_weak(now, to, Ordering::AcqRel, Ordering::Relaxed)
                {
                    Ok(_) => return Some(start),
                    Err(changed) => now = changed,
                }
                continue;
            }
            // The rest of this chunk was never touched, and costs nothing.
            let chunk = map_chunk()?;
            // Its first page is passed over: at its very beginning a chunk looks used up.
            let to = chunk + PAGE;
            match self
                .fresh
                .compare_exchange(now, to, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => now = to,
                Err(changed) => {
                    // SAFETY: mapped above, and nobody else's.
                    unsafe { sys::unmap(chunk as *mut u8, CHUNK) };
                    now = changed;
                }
            }
        }
    }
}

/// The first block of a stack's word.
fn address(word: u64) -> Option<usize> {
    let at = (word & POINTER) << LEAST_SHIFT;
    (at != 0).then_some(at as usize)
}

/// The word of a stack that begins with `first`, after one that was `before`.
fn word(first: usize, before: u64) -> u64 {
    let changes = (before >> POINTER_BITS).wrapping_add(1);
    changes << POINTER_BITS | first as u64 >> LEAST_SHIFT & POINTER
}

/// Where an unused block names the next.
///
/// # Safety
/// `block` is one.
unsafe fn link<'a>(block: usize) -> &'a AtomicUsize {
    // SAFETY: mapped for good, and aligned.
    unsafe { &*(block as *const AtomicUsize) }
}

/// A chunk's memory, aligned.
fn map_chunk() -> Option<usize> {
    let at = sys::map_zeroes(2 * CHUNK, false).ok()? as usize;
    let chunk = up(at, CHUNK);
    for (from, to) in [(at, chunk), (chunk + CHUNK, at + 2 * CHUNK)] {
        if to > from {
            // SAFETY: the ends of what was mapped above.
            unsafe { sys::unmap(from as *mut u8, to - from) };
        }
    }
    if (chunk + CHUNK) >> ADDRESS_BITS != 0 {
        // SAFETY: as above.
        unsafe { sys::unmap(chunk as *mut u8, CHUNK) };
        return None;
    }
    Some(chunk)
}

// SAFETY: a block is given to one user at a time, is as long and as aligned as asked for, and stays
// mapped. Nothing here panics.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some(class) => self.pop(class).unwrap_or_else(|| self.make(class)),
            // More than a page of alignment is never asked for together with so much.
            None if layout.align() > PAGE => null_mut(),
            None => sys::map_zeroes(up(layout.size(), PAGE), false).unwrap_or(null_mut()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) => self.push(class, block as usize),
            // SAFETY: mapped by `alloc`.
            None => unsafe { sys::unmap(block, up(layout.size(), PAGE)) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class(layout).is_some() {
            // SAFETY: as long as was asked for.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's word: not zero, and it does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(len, layout.align()) };
        if class(layout).is_some() && class(layout) == class(wanted) {
            return block;
        }
        // SAFETY: the caller's.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: two blocks, both at least as long.
            unsafe {
                new.copy_from_nonoverlapping(block, layout.size().min(len));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;
    use std::vec::Vec;

    struct Held<'a> {
        heap: &'a Heap,
        at: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl<'a> Held<'a> {
        fn new(heap: &'a Heap, layout: Layout, mark: u8) -> Self {
            // SAFETY: not of no length.
            let at = unsafe { heap.alloc(layout) };
            assert!(!at.is_null() && (at as usize).is_multiple_of(layout.align()));
            // SAFETY: just allocated.
            unsafe { at.write_bytes(mark, layout.size()) };
            Self {
                heap,
                at,
                layout,
                mark,
            }
        }

        fn check(&self) {
            // SAFETY: allocated in `new`.
            let bytes = unsafe { core::slice::from_raw_parts(self.at, self.layout.size()) };
            assert!(bytes.iter().all(|b| *b == self.mark));
        }

        fn resize(&mut self, len: usize) {
            self.check();
            // SAFETY: allocated in `new`; not of no length.
            self.at = unsafe { self.heap.realloc(self.at, self.layout, len) };
            let kept = len.min(self.layout.size());
            self.layout = Layout::from_size_align(len, self.layout.align()).unwrap();
            // SAFETY: as long as that.
            let bytes = unsafe { core::slice::from_raw_parts_mut(self.at, len) };
            assert!(bytes.iter().take(kept).all(|b| *b == self.mark));
            bytes.fill(self.mark);
        }
    }

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.check();
            // SAFETY: allocated in `new`.
            unsafe { self.heap.dealloc(self.at, self.layout) };
        }
    }

    fn layout(len: usize, shift: u32) -> Layout {
        Layout::from_size_align(len, 1 << shift).unwrap()
    }

    proptest! {
        #[test]
        fn blocks_are_apart(
            steps in prop::collection::vec(
                (0usize..3, 1usize..300_000, 0u32..13, any::<usize>()), 1..200,
            ),
        ) {
            let heap = Heap::new(None);
            let mut held: Vec<Held<'_>> = Vec::new();
            for (n, (what, len, shift, at)) in steps.into_iter().enumerate() {
                // Small ones most of the time.
                let len = if n % 8 == 0 { len } else { len % 700 + 1 };
                match what {
                    0 if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    1 if !held.is_empty() => {
                        let at = at % held.len();
                        held[at].resize(len);
                    }
                    _ => held.push(Held::new(&heap, layout(len, shift), n as u8)),
                }
            }
        }
    }

    #[test]
    fn zeroed_is_zero_after_use() {
        let heap = Heap::new(None);
        for len in [1, 100, 5000, 200_000] {
            drop(Held::new(&heap, layout(len, 0), 0xee));
            // SAFETY: not of no length.
            let at = unsafe { heap.alloc_zeroed(layout(len, 0)) };
            // SAFETY: just allocated.
            let bytes = unsafe { core::slice::from_raw_parts(at, len) };
            assert!(bytes.iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn threads_share_it() {
        static ROOM: Room = Room::new();
        static HEAP: Heap = Heap::new(Some(&ROOM));
        let turns = if cfg!(miri) { 100 } else { 100_000 };
        std::thread::scope(|scope| {
            for thread in 0u8..4 {
                scope.spawn(move || {
                    let mut held = std::collections::VecDeque::new();
                    for n in 0..turns {
                        held.push_back(Held::new(
                            &HEAP,
                            layout(20 + n % 200, 0),
                            thread << 6 | n as u8 & 63,
                        ));
                        if held.len() > 1 + n % 7 {
                            held.pop_front();
                            held.pop_front();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_handler_allocates_amid_an_allocation() {
        static HEAP: Heap = Heap::new(None);
        static OVER: AtomicBool = AtomicBool::new(false);
        extern "C" fn handler(_: i32) {
            let _both = [
                Held::new(&HEAP, layout(64, 0), 1),
                Held::new(&HEAP, layout(64, 0), 2),
            ];
        }
        let thread = std::thread::spawn(|| {
            // SAFETY: a handler of this test's own, for a signal that nobody else uses here.
            unsafe { libc::signal(libc::SIGURG, handler as *const () as usize) };
            while !OVER.load(Ordering::Relaxed) {
                let _held = [
                    Held::new(&HEAP, layout(50, 0), 3),
                    Held::new(&HEAP, layout(60, 0), 4),
                ];
            }
        });
        use std::os::unix::thread::JoinHandleExt;
        for _ in 0..20_000 {
            // SAFETY: joined below.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
            if thread.is_finished() {
                break;
            }
        }
        OVER.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn the_same_memory_serves_again() {
        let heap = Heap::new(None);
        let mut seen = std::collections::HashSet::new();
        for n in 0..100_000usize {
            let held = Held::new(&heap, layout(1000, 0), n as u8);
            seen.insert(held.at as usize);
        }
        assert!(seen.len() <= 4, "{} blocks for one at a time", seen.len());
    }
}
