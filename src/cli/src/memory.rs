//! Copies of other processes' memory. Each is taken once, into a buffer where any bytes are valid;
//! what is in it is the other process's word.

use sluice_stats::{Conn, Header, Root};
use std::io;
use std::marker::PhantomData;

/// Types that any bytes are a valid value of.
///
/// # Safety
/// Integers and atomics of integers or pointers only; a multiple of 64 bytes long, and aligned to
/// 64 bytes at most.
pub unsafe trait Plain {}

// SAFETY: integers only, 64 bytes of them.
unsafe impl Plain for Header {}
// SAFETY: integers, and atomics of integers and pointers; the pointers are never followed here.
// Aligned to 64 bytes.
unsafe impl Plain for Root {}
// SAFETY: atomics of integers only, aligned to 64 bytes.
unsafe impl Plain for Conn {}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Copies of so many values of a type, whose bytes come from elsewhere.
pub struct Copied<T> {
    lines: Vec<Line>,
    of: PhantomData<T>,
}

impl<T: Plain> Copied<T> {
    const LINES: usize = {
        assert!(align_of::<T>() <= 64 && size_of::<T>().is_multiple_of(64) && size_of::<T>() != 0);
        size_of::<T>() / 64
    };

    /// All of them zeros.
    pub fn new(count: usize) -> Self {
        Self {
            lines: vec![Line([0; 64]); count * Self::LINES],
            of: PhantomData,
        }
    }

    /// What these bytes are a copy of; `None`: they are not a whole number of values.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(size_of::<T>()) {
            return None;
        }
        let mut copied = Self::new(bytes.len() / size_of::<T>());
        copied.bytes_mut().copy_from_slice(bytes);
        Some(copied)
    }

    pub fn items(&self) -> &[T] {
        let count = self.lines.len() / Self::LINES;
        // SAFETY: the lines are as long as so many values, aligned as they are, and initialised;
        // any bytes are a value.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), count) }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are bytes, and initialised.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * 64) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.lines.len() * 64;
        // SAFETY: as in `bytes`; we borrow them alone, and any bytes will do.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    /// Without the zeros at the end, or most of them.
    pub fn bytes_to_last(&self) -> &[u8] {
        let is_used = |line: &Line| line.0 != [0; 64];
        let lines = self
            .lines
            .iter()
            .rposition(is_used)
            .map_or(0, |last| last + 1);
        self.bytes().get(..lines * 64).unwrap_or_default()
    }

    /// Begins with these bytes, as many as there is room for.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes_mut().iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    /// Adds a copy of one of the others.
    pub fn push_from(&mut self, others: &Self, number: usize) {
        let begin = number * Self::LINES;
        let lines = others.lines.get(begin..begin + Self::LINES);
        self.lines.extend_from_slice(lines.unwrap_or_default());
    }
}

impl Copied<Root> {
    /// The one value that is there.
    pub fn root(&self) -> &Root {
        static NONE: Root = Root::new();
        self.items().first().unwrap_or(&NONE)
    }
}

/// Fills `to` with what lies at `addr` in the process. Only a whole copy is a success.
///
/// The other process decides how long that takes: a page of its may be one that never comes. No
/// signal but SIGKILL ends the wait then, and not always that one.
pub fn read(pid: i32, addr: usize, to: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let place = addr.checked_add(done).ok_or(io::ErrorKind::InvalidInput)?;
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(place),
            iov_len: rest.len(),
        };
        // SAFETY: the kernel writes into the rest of `to`, which we borrow alone; the remote
        // address is checked by the kernel.
        let copied =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => done += copied,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// The words that lie at `places`, those that are there.
pub fn words(pid: i32, places: &[usize]) -> Vec<Option<u64>> {
    /// The kernel takes 1024 places at a time.
    const AT_ONCE: usize = 512;
    const WORD: usize = size_of::<u64>();
    let mut found = Vec::with_capacity(places.len());
    while let Some(rest) = places.get(found.len()..).filter(|rest| !rest.is_empty()) {
        let mut words = [0_u64; AT_ONCE];
        let asked = rest.iter().take(AT_ONCE);
        let remote: Vec<_> = asked
            .map(|&place| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(place),
                iov_len: WORD,
            })
            .collect();
        let local = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: remote.len() * WORD,
        };
        let count = remote.len() as libc::c_ulong;
        // SAFETY: the kernel writes into `words`, which is ours and long enough; the remote
        // addresses are checked by the kernel.
        let copied =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
        // It ends before the first word that is not there.
        let whole = usize::try_from(copied).unwrap_or(0) / WORD;
        found.extend(words.iter().take(whole).copied().map(Some));
        if whole < remote.len() {
            found.push(None);
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_reads_back() {
        let pid = std::process::id() as i32;
        let from = *b"some bytes";
        let mut to = [0_u8; 10];
        read(pid, from.as_ptr().addr(), &mut to).unwrap();
        assert_eq!(to, from);
        assert!(read(pid, 0, &mut to).is_err());
        assert!(read(pid, usize::MAX - 3, &mut to).is_err());
    }

    #[test]
    fn words_are_found_beside_places_where_none_is() {
        let all: Vec<u64> = (0..1500).collect();
        let mut places: Vec<usize> = all
            .iter()
            .map(|word| std::ptr::from_ref(word).addr())
            .collect();
        for (number, wrong) in [(0, 0), (700, usize::MAX - 3), (701, 1), (1499, 4096)] {
            places.splice(number..=number, [wrong]);
        }
        let found = words(std::process::id() as i32, &places);
        let expected = all.iter().map(|&word| {
            let is_wrong = [0, 700, 701, 1499].contains(&word);
            (!is_wrong).then_some(word)
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn copies_are_values() {
        let mut headers = Copied::<Header>::new(2);
        let len = headers.bytes().len() / 2;
        let this = std::ptr::from_ref(&Header::THIS).addr();
        let second = headers.bytes_mut().get_mut(len..).unwrap();
        read(std::process::id() as i32, this, second).unwrap();
        let readable = |copies: &Copied<Header>| -> Vec<bool> {
            copies.items().iter().map(Header::is_readable).collect()
        };
        assert_eq!(readable(&headers), [false, true]);
        let mut more = Copied::new(0);
        more.push_from(&headers, 1);
        more.push_from(&headers, 2);
        assert_eq!(readable(&more), [true], "there is no third one");
        assert_eq!(Copied::<Root>::new(0).root().used(), 0);
    }
}
