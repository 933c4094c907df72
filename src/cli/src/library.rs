//! Where a process has loaded the library: from its mappings, and from the first page of the file
//! as the process has it in memory.
//!
//! A file is the library's if it is named so, is an ELF shared object, and lies in memory as the
//! loader puts one: code that may be executed and data that may be written, each as far from the
//! first page as the file's own table of segments says. Files merely named so, or mapped to be
//! read, are passed over by arithmetic. The file itself is never opened: it may have been deleted,
//! be out of reach for us, or belong to a file system that does not answer. A process that forges
//! its memory could also forge a file. So this saves work, and proves nothing: what a process can
//! cost is bounded by the numbers below and by the time that its reader has.

use crate::memory;
use crate::process::Mapping;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

/// The library's file name.
pub const NAME: &str = "libsluice.so";

/// Different files of that name that are examined in one process, each once.
const FILES: usize = 16;

/// Data segments that are searched, and their bytes together: the library's own takes some pages,
/// and of two copies one is idle.
const SEGMENTS: usize = 16;
const SEARCHED: usize = 16 << 20;

/// What is read of a file: its header, and the table of segments right after it.
const HEAD: usize = 4096;

/// Part of a file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    addr: u64,
    len: u64,
    is_writable: bool,
    is_executable: bool,
}

/// Memory in which the counters may lie.
#[derive(Debug)]
pub struct Data {
    pub start: usize,
    pub end: usize,
    /// Of the file that it was loaded from.
    pub path: OsString,
}

/// A file, by device and inode.
type File = (Vec<u8>, u64);

/// What the mappings of a process, in their order, have told so far.
#[derive(Default)]
pub struct Loads {
    /// Files that were examined: their segments, or none, if it is no library.
    files: Vec<(File, Vec<Load>)>,
    /// The last first page that was seen: where it is, and of which of the files.
    first: Option<(usize, usize)>,
    /// Its code may be executed somewhere.
    pub is_loaded: bool,
    pub data: Vec<Data>,
    /// Mappings that may be the library's and are too many.
    pub left_out: u64,
    /// A file's first page may not be read, and one that is named so may be executed.
    denied: Option<i32>,
    has_code: bool,
}

impl Loads {
    /// Of process `pid`.
    pub fn see(&mut self, pid: i32, mapping: &Mapping) {
        if !mapping.is_of(NAME) {
            return;
        }
        self.has_code |= mapping.is_executable;
        if mapping.offset == 0 {
            self.first = self
                .file(pid, mapping)
                .map(|number| (mapping.start, number));
        }
        let Some((first, number)) = self.first else {
            return;
        };
        let Some(((device, inode), loads)) = self.files.get(number) else {
            return;
        };
        if (device.as_slice(), *inode) != mapping.file {
            return;
        }
        let mut at_its_place = loads.iter().filter(|load| load.is_at(first, mapping));
        let Some(load) = at_its_place.next() else {
            return;
        };
        self.is_loaded |= load.is_executable && mapping.is_executable;
        if load.is_writable && mapping.is_writable {
            self.keep(mapping);
        }
    }

    /// Why it is not known whether a file is the library, or what is in it.
    pub fn denied(&self) -> Option<io::Error> {
        let error = self.denied.filter(|_| self.has_code);
        error.map(io::Error::from_raw_os_error)
    }

    /// Which of the files it is; one that is new is examined.
    fn file(&mut self, pid: i32, mapping: &Mapping) -> Option<usize> {
        let (device, inode) = mapping.file;
        let is_it = |((d, i), _): &(File, Vec<Load>)| d.as_slice() == device && *i == inode;
        if let Some(known) = self.files.iter().position(is_it) {
            return Some(known);
        }
        if self.files.len() == FILES {
            self.left_out += 1;
            return None;
        }
        let len = mapping.end.saturating_sub(mapping.start).min(HEAD);
        let mut head = vec![0; len];
        // What cannot be read is no library, and not asked again.
        let loads = match memory::read(pid, mapping.start, &mut head) {
            Ok(()) => loads(&head).unwrap_or_default(),
            Err(error) => {
                let is_denial = |&error: &i32| error == libc::EPERM || error == libc::EACCES;
                self.denied = self.denied.or(error.raw_os_error().filter(is_denial));
                Vec::new()
            }
        };
        self.files.push(((device.to_vec(), inode), loads));
        Some(self.files.len() - 1)
    }

    fn keep(&mut self, mapping: &Mapping) {
        let len = |data: &Data| data.end - data.start;
        let searched: usize = self.data.iter().map(len).sum();
        let more = mapping.end.saturating_sub(mapping.start);
        if self.data.len() == SEGMENTS || searched.saturating_add(more) > SEARCHED {
            self.left_out += 1;
            return;
        }
        self.data.push(Data {
            start: mapping.start,
            end: mapping.end,
            path: OsString::from_vec(mapping.path.to_vec()),
        });
    }
}

impl Load {
    /// Does the mapping show this part, or some of it, of a file whose first page is at `first`?
    fn is_at(&self, first: usize, mapping: &Mapping) -> bool {
        let behind = |a: u64, b: u64| a.wrapping_sub(b);
        let is_shifted_so = behind(behind(mapping.start as u64, first as u64), mapping.offset)
            == behind(self.addr, self.offset);
        let len = mapping.end.saturating_sub(mapping.start) as u64;
        is_shifted_so
            && mapping.offset < self.offset.saturating_add(self.len)
            && mapping.offset.saturating_add(len) > self.offset
    }
}

/// The parts of a shared object that are loaded, by elf(5); `None`: it is none that this tool could
/// read.
fn loads(head: &[u8]) -> Option<Vec<Load>> {
    const SHARED_OBJECT: u16 = 3;
    const LOADED: u32 = 1;
    /// Class (64 bits), byte order (ours), version.
    const IDENTITY: [u8; 7] = [
        0x7f,
        b'E',
        b'L',
        b'F',
        2,
        if cfg!(target_endian = "little") { 1 } else { 2 },
        1,
    ];
    const ENTRY: usize = 56;
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    if !head.starts_with(&IDENTITY) || u16_at(16)? != SHARED_OBJECT {
        return None;
    }
    let table = usize::try_from(u64_at(32)?).ok()?;
    if usize::from(u16_at(54)?) != ENTRY {
        return None;
    }
    let count = usize::from(u16_at(56)?).min(HEAD / ENTRY);
    let mut found = Vec::new();
    for number in 0..count {
        let at = table.checked_add(number * ENTRY)?;
        if u32_at(at)? != LOADED {
            continue;
        }
        let flags = u32_at(at + 4)?;
        found.push(Load {
            offset: u64_at(at + 8)?,
            addr: u64_at(at + 16)?,
            len: u64_at(at + 32)?,
            is_writable: flags & 2 != 0,
            is_executable: flags & 1 != 0,
        });
    }
    Some(found)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
mod tests {
    use super::*;

    /// A head with these parts: type, flags, offset, address, length.
    fn head(parts: &[(u32, u32, u64, u64, u64)]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        head[16] = 3;
        head[32] = 64;
        head[54] = 56;
        head[56] = parts.len() as u8;
        for (number, (kind, flags, offset, addr, len)) in parts.iter().enumerate() {
            let at = 64 + 56 * number;
            head[at..at + 4].copy_from_slice(&kind.to_ne_bytes());
            head[at + 4..at + 8].copy_from_slice(&flags.to_ne_bytes());
            for (place, word) in [(8, offset), (16, addr), (32, len)] {
                head[at + place..at + place + 8].copy_from_slice(&word.to_ne_bytes());
            }
        }
        head
    }

    fn mapping(start: usize, offset: u64, rights: &str) -> Mapping<'static> {
        Mapping {
            start,
            end: start + 0x1000,
            is_writable: rights.contains('w'),
            is_executable: rights.contains('x'),
            offset,
            file: (b"08:01", 7),
            path: b"/lib/libsluice.so",
        }
    }

    /// Loads in our own memory, where `head` is what is read of the file.
    fn seen(head: &[u8], mappings: impl Fn(usize) -> Vec<Mapping<'static>>) -> Loads {
        let mut loads = Loads::default();
        for mapping in mappings(head.as_ptr().addr()) {
            loads.see(std::process::id() as i32, &mapping);
        }
        loads
    }

    #[test]
    fn a_library_lies_as_its_segments_say() {
        let head = head(&[
            (6, 4, 0x40, 0x40, 0x100),
            (1, 4, 0, 0, 0x900),
            (1, 5, 0x1100, 0x2100, 0x900),
            (1, 6, 0x2f00, 0x4f00, 0x1200),
        ]);
        let loaded = |at: usize| {
            vec![
                mapping(at, 0, "r"),
                mapping(at + 0x2000, 0x1000, "rx"),
                // The part that the loader makes read-only, and the rest.
                mapping(at + 0x4000, 0x2000, "r"),
                mapping(at + 0x5000, 0x3000, "rw"),
            ]
        };
        let found = seen(&head, loaded);
        assert!(found.is_loaded);
        assert_eq!((found.data.len(), found.left_out), (1, 0));
        assert_eq!(found.data[0].start, head.as_ptr().addr() + 0x5000);
        // Elsewhere, beyond the part, or of another file.
        for wrong in [
            (0x6000, 0x3000, "08:01"),
            (0x7000, 0x5000, "08:01"),
            (0x5000, 0x3000, "08:02"),
        ] {
            let (behind, offset, device) = wrong;
            let found = seen(&head, |at| {
                let data = Mapping {
                    file: (device.as_bytes(), 7),
                    ..mapping(at + behind, offset, "rw")
                };
                vec![mapping(at, 0, "r"), data]
            });
            assert!(found.data.is_empty(), "{wrong:?}");
        }
        // A thousand times the same file, as a reader maps it, hide nothing.
        let found = seen(&head, |at| {
            let mut all: Vec<_> = (0..1000).map(|_| mapping(at, 0, "rwx")).collect();
            all.extend(loaded(at));
            all
        });
        assert_eq!((found.files.len(), found.left_out), (1, 0));
        assert_eq!((found.data.len(), found.is_loaded), (1, true));
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let head = head(&[(1, 7, 0, 0, 0x1000)]);
        let found = seen(&head, |at| {
            (0..100).map(|_| mapping(at, 0, "rwx")).collect()
        });
        assert_eq!((found.data.len(), found.left_out), (SEGMENTS, 84));
        let found = seen(&head, |at| {
            let of = |inode| Mapping {
                file: (b"08:01", inode),
                ..mapping(at, 0, "r")
            };
            (0..20).map(of).collect()
        });
        assert_eq!((found.files.len(), found.left_out), (FILES, 4));
        let found = seen(&head, |at| {
            vec![Mapping {
                end: at + SEARCHED + 1,
                ..mapping(at, 0, "rw")
            }]
        });
        assert_eq!((found.data.len(), found.left_out), (0, 1));
    }

    #[test]
    fn heads_of_any_bytes_are_taken() {
        let good = head(&[(1, 5, 0, 0, 0x1000), (1, 6, u64::MAX, u64::MAX, u64::MAX)]);
        assert_eq!(loads(&good).unwrap().len(), 2);
        for len in 0..200 {
            let _ = loads(&good[..len]);
        }
        let mut seed = 1_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..1 + random() % 8 {
                let at = random() as usize % 240;
                bad[at] = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() as usize % 6];
            }
            for load in loads(&bad).unwrap_or_default() {
                for start in [0, 0x1000, usize::MAX & !0xfff] {
                    let offset = [0, 0x1000, load.offset, u64::MAX][random() as usize % 4];
                    let at = Mapping {
                        end: usize::MAX,
                        ..mapping(0, offset, "rw")
                    };
                    let _ = load.is_at(start, &at);
                }
            }
        }
    }
}
