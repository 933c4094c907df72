//! What /proc tells of other processes. Every process may be gone at the next line; nothing read
//! here is trusted to be whole.

use std::fmt::{self, Write};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes from elsewhere, made harmless for a terminal.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.utf8_chunks() {
            for letter in part.valid().chars() {
                if letter.is_control() || turns_text(letter) {
                    f.write_char('?')?
                } else {
                    f.write_char(letter)?
                }
            }
            if !part.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

/// Is it one of the letters without a shape that turn the text round them, hide in it or break its
/// line?
fn turns_text(letter: char) -> bool {
    matches!(
        letter,
        '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    )
}

/// One part of a process's address space.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    pub start: usize,
    pub end: usize,
    pub is_writable: bool,
    pub is_executable: bool,
    /// Of its first byte in the file.
    pub offset: u64,
    /// The file: device and inode, as the kernel has them.
    pub file: (&'a [u8], u64),
    /// Empty for memory without a file.
    pub path: &'a [u8],
}

/// All processes of this pid namespace, by number.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    let mut pids: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The name that ps(1) shows.
pub fn name(pid: i32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    Shown(comm.trim_ascii_end()).to_string()
}

/// The program and its arguments, as far as [`LONGEST_COMMAND`] letters go.
///
/// To be called where it may take for ever: it lies in the process's own memory.
pub fn command(pid: i32) -> String {
    let mut bytes = arguments(pid);
    let is_blank = |byte: u8| byte == 0 || byte.is_ascii_whitespace();
    bytes
        .iter_mut()
        .filter(|byte| is_blank(**byte))
        .for_each(|byte| *byte = b' ');
    let shown = Shown(bytes.trim_ascii()).to_string();
    match shown.char_indices().nth(LONGEST_COMMAND) {
        Some((end, _)) => format!("{}...", shown.get(..end).unwrap_or_default()),
        None => shown,
    }
}

/// Letters of a command line that tell one process from another.
const LONGEST_COMMAND: usize = 200;

/// The arguments of a process, each with a zero after it, as far as any path is long.
fn arguments(pid: i32) -> Vec<u8> {
    let mut arguments = Vec::new();
    let opened = File::open(format!("/proc/{pid}/cmdline"));
    let _ = opened.and_then(|file| file.take(LONGEST_ARGUMENT).read_to_end(&mut arguments));
    arguments
}

/// Is the process called this? By its command name, which the kernel cuts to 15 bytes, by its
/// program file or by its first argument.
pub fn is_named(pid: i32, wanted: &str) -> bool {
    let is_wanted = |path: &[u8]| {
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        file == wanted.as_bytes()
    };
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    if is_wanted(comm.trim_ascii_end()) {
        return true;
    }
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    if is_wanted(program.as_os_str().as_bytes()) {
        return true;
    }
    // It lies in the process's own memory, and is as long as the process says.
    arguments(pid)
        .split(|&byte| byte == 0)
        .next()
        .is_some_and(is_wanted)
}

/// More of its first argument than any path has.
const LONGEST_ARGUMENT: u64 = libc::PATH_MAX as u64;

/// The process's number in its own pid namespace, which is what it sees itself.
pub fn own_pid(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Is the process there, and not merely waiting for its parent to notice its end?
pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.first(), None | Some(b'Z' | b'X')))
}

/// When it began, in ticks: with the number it names a process.
pub fn started(pid: i32) -> Option<u64> {
    let stat = stat(pid)?;
    let field = stat.split(|&byte| byte == b' ').nth(19)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Of proc_pid_stat(5) what follows the name, from the state on.
fn stat(pid: i32) -> Option<Vec<u8>> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold brackets itself; the state follows the last one.
    let rest = stat.rsplitn(2, |&byte| byte == b')').next()?;
    Some(rest.trim_ascii_start().to_vec())
}

/// Hands over the address space of a process, mapping by mapping, until `each` has seen enough:
/// those of files whose name begins so. An error also where there is none, as of what is left of a
/// process that has ended.
pub fn each_mapping(
    pid: i32,
    name: &str,
    mut each: impl FnMut(Mapping) -> ControlFlow<()>,
) -> io::Result<()> {
    /// Every byte of the longest path may take four, as "\\012" does.
    const LONGEST_LINE: u64 = 4 * libc::PATH_MAX as u64 + 128;
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let mut maps = BufReader::with_capacity(64 << 10, maps);
    let mut line = Vec::new();
    let mut is_empty = true;
    loop {
        line.clear();
        if (&mut maps)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            break;
        }
        is_empty = false;
        let whole = line.strip_suffix(b"\n").unwrap_or(&line);
        // Most lines are of other files, and not worth more.
        let file = whole.rsplit(|&byte| byte == b'/').next();
        if !file.is_some_and(|file| file.starts_with(name.as_bytes())) {
            continue;
        }
        if mapping(whole).is_some_and(|mapping| each(mapping).is_break()) {
            break;
        }
    }
    if is_empty && !is_alive(pid) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// May its mappings be seen?
pub fn has_mappings(pid: i32) -> bool {
    each_mapping(pid, "", |_| ControlFlow::Break(())).is_ok()
}

/// A line of proc_pid_maps(5): `start-end perms offset dev inode path`.
fn mapping(line: &[u8]) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut range = std::str::from_utf8(words.next()?).ok()?.splitn(2, '-');
    let start = usize::from_str_radix(range.next()?, 16).ok()?;
    let end = usize::from_str_radix(range.next()?, 16).ok()?;
    let permissions = words.next()?;
    let is_writable = permissions.get(1) == Some(&b'w');
    let is_executable = permissions.get(2) == Some(&b'x');
    let offset = u64::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 16).ok()?;
    let device = words.next()?;
    let inode = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    (start <= end).then(|| Mapping {
        start,
        end,
        is_writable,
        is_executable,
        offset,
        file: (device, inode),
        path: words.next().unwrap_or_default().trim_ascii_start(),
    })
}

impl Mapping<'_> {
    /// Does it belong to a file of this name, or to one with a version after the name, that may
    /// have been deleted since?
    pub fn is_of(&self, library: &str) -> bool {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(self.path);
        is_file_of(path, library)
    }
}

/// Is this the path of a file of this name, or of one with a version after the name?
pub fn is_file_of(path: &[u8], library: &str) -> bool {
    let file = Path::new(std::ffi::OsStr::from_bytes(path))
        .file_name()
        .unwrap_or_default();
    file.as_bytes()
        .strip_prefix(library.as_bytes())
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_understood() {
        let line = b"7f00-7fff rw-p 00001000 08:01 42                         \
                     /usr/my lib/libsluice.so (deleted)";
        let found = mapping(line).unwrap();
        assert_eq!(
            (found.start, found.end, found.is_writable),
            (0x7f00, 0x7fff, true)
        );
        assert_eq!((found.offset, found.file), (0x1000, (&b"08:01"[..], 42)));
        assert!(found.is_of("libsluice.so"));
        let anonymous = mapping(b"1000-2000 r--p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.is_writable, anonymous.path.len()), (false, 0));
        assert!(!anonymous.is_of("libsluice.so"));
        for line in [
            &b""[..],
            b"zz-1 rw-p",
            b"2000-1000 rw-p 0 0 0 ",
            b"1000 rw-p",
            b"1000-2000 rw-p 0 08:01",
            b"1000-2000 rw-p 0 08:01 -1 /lib",
            b"1000-2000 rw-p 10000000000000000 08:01 1 /lib",
            b"\xff-\xff r",
        ] {
            assert_eq!(mapping(line), None);
        }
    }

    #[test]
    fn a_library_is_known_by_its_file_name() {
        let of = |path: &str| {
            Mapping {
                start: 0,
                end: 0,
                is_writable: true,
                is_executable: false,
                offset: 0,
                file: (b"", 0),
                path: path.as_bytes(),
            }
            .is_of("libsluice.so")
        };
        assert!(of("/lib/libsluice.so"));
        assert!(of("/lib/libsluice.so.0.1"));
        assert!(!of("/lib/libsluice.sox"));
        assert!(!of("/lib/mylibsluice.so"));
        assert!(!of("/libsluice.so/other"));
    }

    #[test]
    fn we_find_ourselves() {
        let pid = std::process::id() as i32;
        assert!(is_alive(pid));
        assert!(started(pid).unwrap() > 0);
        assert_eq!(own_pid(pid).unwrap(), std::process::id());
        assert!(all().unwrap().contains(&pid));
        let mut seen = 0;
        let stop_at_third = |_: Mapping| {
            seen += 1;
            if seen == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        each_mapping(pid, "", stop_at_third).unwrap();
        assert_eq!(seen, 3);
        let mut named = 0;
        let own = std::env::current_exe().unwrap();
        let own = own.file_name().unwrap().to_str().unwrap();
        let all_of_ours = |mapping: Mapping| {
            assert!(mapping.is_of(own));
            named += 1;
            ControlFlow::Continue(())
        };
        each_mapping(pid, own, all_of_ours).unwrap();
        assert!(named > 1);
        assert!(each_mapping(0, "", |_| ControlFlow::Continue(())).is_err());
    }

    #[test]
    fn a_command_line_is_readable_and_short() {
        let own = command(std::process::id() as i32);
        let first = std::env::args().next().unwrap();
        assert!(own.starts_with(&first), "{own}");
        let long = "x".repeat(300);
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read line", "a\x1b[2Jb", "c d", &long])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It runs by then, and the kernel has its arguments.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let shown = command(child.id() as i32);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(
            shown.starts_with("sh -c echo; read line a?[2Jb c d xxx"),
            "{shown}"
        );
        assert_eq!(shown.len(), LONGEST_COMMAND + 3, "{shown}");
        assert_eq!(command(0), "");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(Shown(b"a\x1b[2Jb\n\xff\xc3\xa9").to_string(), "a?[2Jb??é");
        let turned = "a\u{202e}b\u{2028}c\u{200b}";
        assert_eq!(Shown(turned.as_bytes()).to_string(), "a?b?c?");
    }
}
