//! A part of a file, mapped so that a device can read the file's own pages.
//!
//! The registered pages are the file's as long as the kernel has not taken them out of its page
//! cache, by a truncation, a hole or a write past the cache. Whatever takes a page out of the cache
//! unmaps it first, and no processor touches the mapping, so that nothing maps another page there.
//! A file of overlayfs may come to have another one's pages, by a copy-up, which changes its time.
//! So *all pages are mapped, and the file has its size and its time of change* proves that the
//! device sends what a read of the file would give (`docs/decisions/034-pages-of-files.md`).
//!
//! A processor that touched the mapping beyond the file's end would get SIGBUS. The kernel may read
//! it, and answers EFAULT.

use core::sync::atomic::{AtomicBool, Ordering};
use libc::c_int;
use sluice_fabric::sys::{self, Errno};
use sluice_runtime::own_fds::Low;
use sluice_runtime::{control_thread, pagemap};

/// Bytes of a file that a window has, but for the file's end.
pub const LEN: u64 = 1 << 20;

/// A file as it was at a moment (`fstat(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    device: u64,
    inode: u64,
    /// Its size, in bytes.
    pub size: u64,
    changed: [i64; 2],
}

impl Version {
    /// What `fstat` says.
    #[must_use]
    pub fn of(st: &libc::stat) -> Self {
        Self {
            device: st.st_dev,
            inode: st.st_ino,
            size: st.st_size.max(0) as u64,
            changed: [st.st_ctime, st.st_ctime_nsec],
        }
    }

    /// Returns whether it has been left alone for a while: one that is being written would be
    /// registered in vain again and again.
    pub(super) fn is_at_rest(&self) -> bool {
        sys::seconds().saturating_sub(self.changed[0]) > AT_REST_S
    }

    /// What names the window of this number, whenever.
    pub(super) const fn key(&self, number: u64) -> (u64, u64, u64) {
        (self.device, self.inode, number)
    }
}

/// Why no window is made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It changed less than a second ago.
    Fresh,
    /// Its kind, its file system or how it was opened.
    Kind,
    /// The kernel refused.
    Refused(Errno),
    /// The mapping shows other bytes than a read: the descriptor is of a file from before a copy-up
    /// of overlayfs.
    Differs,
}

/// Time, in seconds, for which a file must have been left alone.
const AT_REST_S: i64 = 1;

/// File systems whose files are mapped by their page cache, and that take a page out of it before
/// they change what it stands for; and overlayfs, whose files are those of others.
const FILE_SYSTEMS: [i64; 6] = [
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
    libc::F2FS_SUPER_MAGIC,
    libc::TMPFS_MAGIC,
    libc::OVERLAYFS_SUPER_MAGIC,
];

/// See the [module](self).
#[derive(Debug)]
pub struct Window {
    at: *mut u8,
    len: usize,
    touched: AtomicBool,
}

// SAFETY: an address; no thread reads or writes there.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps what the regular file `fd`, which the program has open, has of these `len` bytes.
    /// `from` is the first byte of a page; `st` is what `fstat` says of the file now.
    ///
    /// No descriptor of the library's is needed: if one were closed, the program would lose its
    /// locks on the file (fcntl_locking(2)).
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn map(fd: c_int, st: &libc::stat, from: u64, len: u64) -> Result<Self, Unfit> {
        if !Version::of(st).is_at_rest() {
            return Err(Unfit::Fresh);
        }
        // A description that can write is closed late while it is mapped, and others may wait for
        // that (inotify(7), IN_CLOSE_WRITE). A file without a name, as a memfd, may be about to be
        // sealed or given up.
        let flags = sys::fcntl(fd, libc::F_GETFL, 0).map_err(Unfit::Refused)?;
        let kind = sys::file_system(fd).map_err(Unfit::Refused)?;
        let is_plain = flags & (libc::O_ACCMODE | libc::O_DIRECT | libc::O_PATH) == libc::O_RDONLY;
        let is_file = st.st_mode & libc::S_IFMT == libc::S_IFREG && st.st_nlink != 0;
        if !is_plain || !is_file || !FILE_SYSTEMS.contains(&kind) || is_locked(fd) {
            return Err(Unfit::Kind);
        }
        // Registering the holes of a sparse file of tmpfs would fill them.
        let is_whole = st.st_blocks.saturating_mul(512) >= st.st_size;
        if kind == libc::TMPFS_MAGIC && !is_whole {
            return Err(Unfit::Kind);
        }
        let len = (st.st_size.max(0) as u64).saturating_sub(from).min(len);
        let len = (len as usize).next_multiple_of(sys::page_size());
        if len == 0 {
            return Err(Unfit::Kind);
        }
        let at = sys::map_file(fd, len, from).map_err(Unfit::Refused)?;
        let window = Self {
            at,
            len,
            touched: AtomicBool::new(false),
        };
        // Another thread may have given the number to another file meanwhile.
        if sys::fstat(fd).map(|now| Version::of(&now)) != Ok(Version::of(st)) {
            return Err(Unfit::Fresh);
        }
        // A forked child has no use for it, and would keep the file from being unmapped.
        // SAFETY: the mapping was just made.
        unsafe { sys::madvise(at, len, libc::MADV_DONTFORK) }.map_err(Unfit::Refused)?;
        if !window.is_cached() {
            // The bytes of the call are copied all the same, and what brings them brings others.
            return Err(Unfit::Fresh);
        }
        if kind == libc::OVERLAYFS_SUPER_MAGIC && !window.shows(fd, from) {
            return Err(Unfit::Differs);
        }
        window.populate().map_err(Unfit::Refused)?;
        Ok(window)
    }

    /// Returns whether all pages are in memory, so that no disk is waited for. True if the kernel
    /// does not say: of other users' files it does not (mincore(2)).
    fn is_cached(&self) -> bool {
        let mut pages = [0u8; (LEN / 4096) as usize];
        let count = self.len / sys::page_size();
        let Some(pages) = pages.get_mut(..count) else {
            return false;
        };
        // SAFETY: the mapping is this window's, and there is a byte for each page.
        let told = unsafe { sys::mincore(self.at, self.len, pages) };
        told.is_err() || pages.iter().all(|page| page & 1 != 0)
    }

    /// Maps all pages (madvise(2), Linux 5.14).
    ///
    /// # Errors
    /// The kernel's: EFAULT where the file has become shorter, EINVAL before Linux 5.14.
    fn populate(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this window's; its pages are only read.
        unsafe { sys::madvise(self.at, self.len, libc::MADV_POPULATE_READ) }
    }

    /// Returns whether the mapping shows what a read of the file gives. The kernel copies both.
    fn shows(&self, fd: c_int, offset: u64) -> bool {
        const PART: usize = 4096;
        let (mut read, mut shown) = ([0u8; PART], [0u8; PART]);
        let mut done = 0;
        while done < self.len {
            let part = PART.min(self.len - done);
            let Some(read) = read.get_mut(..part) else {
                return false;
            };
            let Ok(n) = sys::pread(fd, read, offset + done as u64) else {
                return false;
            };
            let from = [libc::iovec {
                iov_base: self.at.wrapping_add(done).cast(),
                iov_len: n,
            }];
            let to = [libc::iovec {
                iov_base: shown.as_mut_ptr().cast(),
                iov_len: n,
            }];
            // SAFETY: `to` is this frame's; the kernel reads the mapping.
            if unsafe { sys::read_process(sys::getpid(), &from, &to) } != Ok(n)
                || read.get(..n) != shown.get(..n)
            {
                return false;
            }
            done += part;
        }
        true
    }

    /// Returns whether the pages of `len` bytes at `offset` of the window are those that were there
    /// when it was populated.
    #[must_use]
    pub fn is_proved(&self, offset: usize, len: usize) -> bool {
        !self.touched.load(Ordering::Relaxed) && self.is_whole(offset, len)
    }

    /// As [`is_proved`](Self::is_proved), where the kernel has read the mapping, too: between that
    /// question and its reading a page may have been another's.
    #[must_use]
    pub fn is_whole(&self, offset: usize, len: usize) -> bool {
        offset + len <= self.len && pagemap::are_present(self.at.addr() + offset, len)
    }

    /// The mapping, for a device or the kernel.
    #[must_use]
    pub const fn at(&self) -> *mut u8 {
        self.at
    }

    /// Its length in bytes, a multiple of the page size.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The kernel is about to read the mapping, which may map other pages: nothing is proved any
    /// more.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }
}

/// Returns whether there are locks on the file or its description (proc_pid_fdinfo(5)). Those of a
/// description (flock(2)) end when the last mapping has gone, too. True if it cannot be told.
fn is_locked(fd: c_int) -> bool {
    let _low = (!control_thread::is_own_thread()).then(Low::begin);
    let path = sys::ShortPath::new(format_args!("/proc/self/fdinfo/{fd}"));
    let Ok(info) = sys::open(path.as_c_str(), libc::O_RDONLY | libc::O_CLOEXEC) else {
        return true;
    };
    let mut text = [0u8; 2048];
    let Ok(n) = sys::read(info.raw(), &mut text) else {
        return true;
    };
    let has_all = n < text.len();
    !has_all || text.windows(5).any(|word| word == b"lock:")
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: nothing but this window refers to the mapping; a region of it ends first.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests make files"
)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::PathBuf;
    use std::time::Duration;

    /// A file of so many bytes that has been left alone for long enough, which goes with this.
    struct Old(PathBuf);

    impl Old {
        fn new(name: &str, len: usize) -> Self {
            // Beside the test's own program, where a file system keeps files.
            let path = std::env::current_exe().unwrap().with_extension(name);
            let mut file = File::create(&path).unwrap();
            file.write_all(&vec![7; len]).unwrap();
            file.sync_all().unwrap();
            std::thread::sleep(Duration::from_secs(AT_REST_S as u64) + Duration::from_millis(1100));
            Self(path)
        }

        fn open(&self) -> File {
            File::open(&self.0).unwrap()
        }

        fn to_write(&self) -> File {
            OpenOptions::new().write(true).open(&self.0).unwrap()
        }

        fn rw(&self) -> File {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&self.0)
                .unwrap()
        }

        fn window(&self) -> Result<Window, Unfit> {
            let file = self.open();
            let st = sys::fstat(file.as_raw_fd()).unwrap();
            Window::map(file.as_raw_fd(), &st, 0, super::LEN)
        }
    }

    impl Drop for Old {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn fallocate(file: &File, mode: c_int, offset: i64, len: i64) -> bool {
        // SAFETY: no pointers.
        unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) == 0 }
    }

    const LEN: usize = 100_000;

    /// Takes pages of a file out of the cache; false where its file system cannot.
    type Take = fn(&Old) -> bool;

    #[test]
    fn a_window_is_proved_while_its_pages_are_the_files() {
        assert!(pagemap::open());
        let old = Old::new("kept", LEN);
        let window = old.window().unwrap();
        assert_eq!(window.len(), LEN.next_multiple_of(sys::page_size()));
        assert!(window.is_proved(0, LEN) && window.is_proved(LEN - 1, 1));
        assert!(!window.is_proved(0, window.len() + 1));
        old.to_write().write_all_at(b"new", 5000).unwrap();
        let stored = sys::map_part(old.rw().as_raw_fd(), 4096, 0).unwrap();
        // SAFETY: a mapping of this test's own.
        unsafe { stored.write_volatile(8) };
        let renamed = old.0.with_extension("new");
        fs::rename(&old.0, &renamed).unwrap();
        fs::remove_file(&renamed).unwrap();
        assert!(window.is_proved(0, LEN), "no false alarm");
        window.touch();
        assert!(!window.is_proved(0, 1));
    }

    #[test]
    fn a_window_is_not_proved_after_a_page_was_taken_out_of_the_cache() {
        assert!(pagemap::open());
        let takes: [(&str, Take); 5] = [
            ("cut", |old| old.to_write().set_len(0).is_ok()),
            ("cut and extended", |old| {
                let file = old.to_write();
                file.set_len(10).unwrap();
                file.set_len(LEN as u64).is_ok()
            }),
            ("punched", |old| {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                fallocate(&old.to_write(), mode, 8192, 4096)
            }),
            ("collapsed", |old| {
                fallocate(&old.to_write(), libc::FALLOC_FL_COLLAPSE_RANGE, 8192, 4096)
            }),
            ("written past the cache", |old| {
                let mut with = OpenOptions::new();
                with.write(true).custom_flags(libc::O_DIRECT);
                let Ok(file) = with.open(&old.0) else {
                    return false;
                };
                let room = sys::map_zeroes(4096, false).unwrap();
                // SAFETY: a page of this test's own, aligned as O_DIRECT asks.
                let page = unsafe { core::slice::from_raw_parts(room, 4096) };
                file.write_all_at(page, 8192).is_ok()
            }),
        ];
        for (what, take) in takes {
            let old = Old::new(&what.replace(' ', "-"), LEN);
            let window = old.window().unwrap();
            assert!(window.is_proved(0, LEN));
            // What the file system cannot do is no danger there.
            if take(&old) {
                assert!(!window.is_proved(0, LEN), "{what}");
            }
        }
    }

    #[test]
    fn no_window_is_made_where_it_could_be_seen() {
        let old = Old::new("refused", LEN);
        let map = |file: &File| {
            let st = sys::fstat(file.as_raw_fd()).unwrap();
            Window::map(file.as_raw_fd(), &st, 0, super::LEN).err()
        };
        assert_eq!(map(&old.open()), None);
        let locked = old.open();
        locked.lock_shared().unwrap();
        assert_eq!(map(&locked), Some(Unfit::Kind), "the lock would last");
        drop(locked);
        assert_eq!(map(&old.rw()), Some(Unfit::Kind), "closed late");
        let st = sys::fstat(old.open().as_raw_fd()).unwrap();
        let beyond = Window::map(old.open().as_raw_fd(), &st, 1 << 20, 1).err();
        assert_eq!(beyond, Some(Unfit::Kind));
        let file = old.open();
        fs::remove_file(&old.0).unwrap();
        assert!(map(&file).is_some(), "it has no name");
        let fresh = Old(old.0.with_extension("fresh"));
        fs::write(&fresh.0, "fresh").unwrap();
        assert_eq!(map(&fresh.open()), Some(Unfit::Fresh));
        assert!(map(&File::open("/proc/self/maps").unwrap()).is_some());
        assert!(map(&File::open("/dev/zero").unwrap()).is_some());
    }
}
