//! Programs that a preloaded library does not serve, as far as their files tell.

use object::elf::{ELF_NOTE_GO, ELFCLASS32, FileHeader64, NT_GO_BUILD_ID, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a program stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Privileges,
    Bits32,
    Static,
    Musl,
    Go,
}

impl Obstacle {
    /// What follows the program's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::Privileges => {
                "is setuid, setgid or has capabilities, so the loader ignores LD_PRELOAD"
            }
            Self::Bits32 => "is a 32-bit program, and the library is 64-bit",
            Self::Static => "is statically linked, so nothing can be preloaded",
            Self::Musl => "is linked to musl, and the library needs glibc",
            Self::Go => "is a Go program, which makes system calls without the C library",
        }
    }
}

/// What keeps the program in this file on TCP.
pub fn of(path: &Path) -> Option<Obstacle> {
    /// As binfmt_script(5) of the kernel: so many interpreters of interpreters.
    const SCRIPTS: usize = 5;
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS {
        // Opening a FIFO would wait for its writer.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        if gains_privileges(&path) {
            return Some(Obstacle::Privileges);
        }
        let file = File::open(&path).ok()?;
        let mut start = Vec::new();
        (&file).take(4096).read_to_end(&mut start).ok()?;
        match interpreter(&start) {
            Some(interpreter) => path = interpreter,
            None => return of_elf(&ReadCache::new(file)),
        }
    }
    None
}

/// The program that runs a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    Some(PathBuf::from(OsString::from_vec(words.next()?.to_vec())))
}

/// Would executing the file make the kernel set AT_SECURE?
fn gains_privileges(path: &Path) -> bool {
    let Ok(file) = path.metadata() else {
        return false;
    };
    // SAFETY: both have no arguments and no effect.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let is_setuid = file.mode() & libc::S_ISUID != 0 && file.uid() != uid;
    let is_setgid = file.mode() & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP;
    if is_setuid || is_setgid && file.gid() != gid {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: two C strings that outlive the call; with a length of 0 nothing is written.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    // Root has the capabilities already; the kernel then does not call the program secure.
    len > 0 && uid != 0
}

/// `None` also for a file that cannot be understood: the kernel or the loader refuses that one.
fn of_elf<'a, R: ReadRef<'a>>(file: R) -> Option<Obstacle> {
    let start = file.read_bytes_at(0, 5).ok()?;
    let class = *start.strip_prefix(b"\x7fELF")?.first()?;
    if class == ELFCLASS32.0 {
        return Some(Obstacle::Bits32);
    }
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    if is_go(header, endian, file) {
        return Some(Obstacle::Go);
    }
    let segments = header.program_headers(endian, file).ok()?;
    let Some(segment) = segments.iter().find(|s| s.p_type(endian) == PT_INTERP) else {
        return Some(Obstacle::Static);
    };
    let loader = segment.interpreter(endian, file).ok()??;
    let is_musl = loader.windows(4).any(|part| part == b"musl");
    is_musl.then_some(Obstacle::Musl)
}

/// Go's linker leaves a section in the file. It also leaves a note, which a program keeps that has
/// lost its table of sections.
fn is_go<'a, R: ReadRef<'a>>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    file: R,
) -> bool {
    let sections = header.sections(endian, file);
    if sections.is_ok_and(|all| all.section_by_name(endian, b".go.buildinfo").is_some()) {
        return true;
    }
    let segments = header.program_headers(endian, file).unwrap_or_default();
    segments.iter().any(|segment| {
        let Ok(Some(mut notes)) = segment.notes(endian, file) else {
            return false;
        };
        std::iter::from_fn(|| notes.next().ok().flatten())
            .any(|note| note.name() == ELF_NOTE_GO && note.n_type(endian) == NT_GO_BUILD_ID)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn scripts_name_their_interpreter() {
        let named = |text: &str| interpreter(text.as_bytes());
        assert_eq!(named("#!/bin/sh\nexit"), Some("/bin/sh".into()));
        assert_eq!(
            named("#! \t/usr/bin/env -S python3\n"),
            Some("/usr/bin/env".into())
        );
        assert_eq!(named("#!"), None);
        assert_eq!(named("\u{7f}ELF"), None);
    }

    #[test]
    fn an_ordinary_program_meets_no_obstacle() {
        assert_eq!(of(Path::new("/bin/sh")), None);
        assert_eq!(of(Path::new("/nonexistent")), None);
        assert_eq!(of(Path::new("/dev/null")), None);
    }

    #[test]
    fn a_damaged_file_is_no_obstacle() {
        for bytes in [
            &b""[..],
            b"\x7fELF",
            b"\x7fELF\x02\x01\x01",
            &[b"\x7fELF\x02".to_vec(), vec![0xff; 100]].concat(),
        ] {
            assert_eq!(of_elf(bytes), None);
        }
        let whole = std::fs::read("/bin/sh").unwrap();
        assert_eq!(of_elf(whole.as_slice()), None);
        for place in 0..64 {
            let mut damaged = whole.clone();
            *damaged.get_mut(place).unwrap() ^= 0xff;
            of_elf(damaged.as_slice());
            of_elf(whole.get(..place).unwrap());
        }
        let small = [b"\x7fELF\x01\x01".to_vec(), vec![0; 10]].concat();
        assert_eq!(of_elf(small.as_slice()), Some(Obstacle::Bits32));
    }
}
