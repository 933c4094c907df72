//! The table of descriptors that Sluice tracks.
//!
//! Tagged words in zero pages: an untracked descriptor costs one compare and one load, and pages of
//! numbers that were never used are never touched. The objects of entries are in type-stable
//! memory: a stale pointer leads to another object of the same type, never to freed memory.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use libc::c_int;

/// Descriptors beyond this number are never tracked.
pub const TABLE_LEN: usize = 1 << 20;

static TABLE: [AtomicUsize; TABLE_LEN] = [const { AtomicUsize::new(0) }; TABLE_LEN];

/// Low bits of an entry; objects are aligned to at least 8.
const TAG_MASK: usize = 7;
const TAG_SOCK: usize = 1;
const TAG_SET: usize = 2;
/// No object: a TCP socket that is neither connected nor listening.
const TAG_FRESH: usize = 3;
/// No object: a TCP listener.
const TAG_LISTENER: usize = 4;
/// No object: a descriptor of the library's own.
const TAG_INTERNAL: usize = 5;
/// No object: an io_uring that is looked into.
const TAG_RING: usize = 6;

/// The entry of a tracked descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(usize);

/// The kind of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connected (or connecting) TCP socket.
    Socket,
    /// An epoll set.
    Set,
    /// A TCP socket that is neither connected nor listening.
    Fresh,
    /// A TCP listener.
    Listener,
    /// A descriptor of the library's own.
    Internal,
    /// An io_uring that is looked into.
    Ring,
}

/// A structure that an entry can point to.
///
/// # Safety
/// [`KIND`](Self::KIND) is [`Kind::Socket`] or [`Kind::Set`], and no other type has it.
pub unsafe trait Object: Sized + 'static {
    /// The kind of its entries.
    const KIND: Kind;
    /// The low bits of its entries.
    const TAG: usize = {
        assert!(align_of::<Self>() > TAG_MASK);
        match Self::KIND {
            Kind::Socket => TAG_SOCK,
            _ => TAG_SET,
        }
    };
}

impl Entry {
    /// An entry for a socket or a set.
    #[must_use]
    pub fn of<T: Object>(object: &'static T) -> Self {
        Self(core::ptr::from_ref(object) as usize | T::TAG)
    }
    /// See [`Kind::Fresh`].
    pub const FRESH: Self = Self(TAG_FRESH);
    /// See [`Kind::Listener`].
    pub const LISTENER: Self = Self(TAG_LISTENER);
    /// See [`Kind::Internal`].
    pub const INTERNAL: Self = Self(TAG_INTERNAL);
    /// See [`Kind::Ring`].
    pub const RING: Self = Self(TAG_RING);

    /// The socket or set, if it is a `T`.
    #[inline]
    #[must_use]
    pub fn get<T: Object>(self) -> Option<&'static T> {
        let at = self.0.wrapping_sub(T::TAG);
        // SAFETY: `of` makes entries with this tag from a `&'static T` only, which is aligned.
        (at & TAG_MASK == 0).then(|| unsafe { &*(at as *const T) })
    }

    /// True for a connected or connecting socket.
    #[must_use]
    pub(crate) fn is_sock(self) -> bool {
        self.kind() == Kind::Socket
    }

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.0 & TAG_MASK {
            TAG_SOCK => Kind::Socket,
            TAG_SET => Kind::Set,
            TAG_FRESH => Kind::Fresh,
            TAG_LISTENER => Kind::Listener,
            TAG_RING => Kind::Ring,
            _ => Kind::Internal,
        }
    }
}

#[inline]
fn cell(fd: c_int) -> Option<&'static AtomicUsize> {
    TABLE.get(fd as usize)
}

/// The entry of `fd`, if it is tracked. Acquire: pairs with [`store`].
#[inline]
#[must_use]
pub fn lookup(fd: c_int) -> Option<Entry> {
    let word = cell(fd)?.load(Ordering::Acquire);
    if word == 0 { None } else { Some(Entry(word)) }
}

/// The entry of `fd` if it is a set. One test fewer than [`lookup`]: an empty word has another tag.
#[inline(always)]
#[must_use]
pub fn lookup_set(fd: c_int) -> Option<Entry> {
    let entry = Entry(cell(fd)?.load(Ordering::Acquire));
    (entry.0 & TAG_MASK == TAG_SET).then_some(entry)
}

/// Enters `fd`. Returns false if the number is beyond the table.
pub fn store(fd: c_int, entry: Entry) -> bool {
    match cell(fd) {
        Some(cell) => {
            // Numbers are reused, so most are below already.
            if HIGHEST.load(Ordering::Relaxed) <= fd as usize {
                HIGHEST.fetch_max(fd as usize + 1, Ordering::Relaxed);
            }
            cell.store(entry.0, Ordering::Release);
            true
        }
        None => false,
    }
}

/// Removes the entry of `fd`, and returns it.
pub fn remove(fd: c_int) -> Option<Entry> {
    let cell = cell(fd)?;
    // Most numbers that are closed were never entered: look before writing to the page.
    if cell.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let word = cell.swap(0, Ordering::AcqRel);
    if word == 0 { None } else { Some(Entry(word)) }
}

/// Removes the entry of `fd` if it is still `entry`.
pub fn remove_if(fd: c_int, entry: Entry) -> bool {
    cell(fd).is_some_and(|c| {
        c.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// True if `fd` is the library's own.
#[inline]
#[must_use]
pub fn is_internal(fd: c_int) -> bool {
    cell(fd).is_some_and(|c| c.load(Ordering::Relaxed) == TAG_INTERNAL)
}

/// One more than the highest number ever entered; 0 if none was. A `select` set may be read up to
/// here and no further: the kernel, too, stops at the end of its table.
#[inline]
#[must_use]
pub fn end() -> c_int {
    HIGHEST.load(Ordering::Relaxed) as c_int
}

/// The program has got this number from the kernel.
#[inline]
pub fn saw(fd: c_int) {
    if fd > SEEN.load(Ordering::Relaxed) {
        SEEN.fetch_max(fd, Ordering::Relaxed);
    }
}

/// The highest number that the program was seen to get.
pub fn highest_seen() -> c_int {
    SEEN.load(Ordering::Relaxed)
}

/// Calls `each` for every entered number in `first..=last`.
pub fn for_range(first: c_int, last: c_int, mut each: impl FnMut(c_int, Entry)) {
    let first = first.max(0) as usize;
    let end = (last.max(-1) as usize)
        .saturating_add(1)
        .min(HIGHEST.load(Ordering::Relaxed));
    for fd in first..end {
        if let Some(entry) = lookup(fd as c_int) {
            each(fd as c_int, entry);
        }
    }
}

/// See [`saw`].
static SEEN: AtomicI32 = AtomicI32::new(0);

/// One more than the highest number ever entered; bounds a walk over the table.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
