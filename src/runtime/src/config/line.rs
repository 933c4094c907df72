//! One line for stderr. Text from outside is made harmless, nothing is allocated, and no write
//! blocks.

use core::ffi::CStr;
use core::fmt::{self, Write};
use sluice_fabric::sys::Errno;
use syscalls::{Sysno, syscall};

/// Text from outside, shortened and without bytes that a terminal would interpret.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

/// As [`Shown`], in quotation marks.
pub(super) struct Quoted<'a>(pub(super) &'a [u8]);

/// As [`Shown`], for the name of a file, whose end matters.
pub struct Path<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to recognise a value.
        const SHOWN_LEN: usize = 40;
        show(f, self.0, SHOWN_LEN)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Two of them fit into a line.
        const SHOWN_LEN: usize = 400;
        show(f, self.0, SHOWN_LEN)
    }
}

fn show(f: &mut fmt::Formatter<'_>, text: &[u8], most: usize) -> fmt::Result {
    for &byte in text.iter().take(most) {
        match byte {
            b' '..=b'~' if byte != b'"' && byte != b'\\' => f.write_char(char::from(byte))?,
            _ => write!(f, "\\x{byte:02x}")?,
        }
    }
    if text.len() > most {
        f.write_str("...")?;
    }
    Ok(())
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Shown(self.0))
    }
}

/// The meaning of an errno, as strerror(3) has it for the C locale.
pub struct Meaning(pub Errno);

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // strerrordesc_np(3), since glibc 2.32: returns a constant string or null, without a lock
        // or an allocation.
        type Description = unsafe extern "C" fn(libc::c_int) -> *const libc::c_char;
        // SAFETY: dlsym with a NUL-terminated name; the function has always had this type.
        let description = unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"strerrordesc_np".as_ptr());
            core::mem::transmute::<*mut libc::c_void, Option<Description>>(found)
        };
        // SAFETY: takes any number.
        let text = description.map_or(core::ptr::null(), |describe| unsafe { describe(self.0) });
        if text.is_null() {
            return write!(f, "error {}", self.0);
        }
        // SAFETY: not null, so a constant C string.
        let text = unsafe { CStr::from_ptr(text) };
        f.write_str(text.to_str().unwrap_or_default())
    }
}

/// One line for stderr, built without an allocator. What does not fit is cut off, which is marked.
pub(super) struct Line {
    text: [u8; LINE_LEN],
    len: usize,
    cut: bool,
}

/// Room for all settings wrong at once, and far below PIPE_BUF, up to which a write to a pipe is
/// atomic: lines of several processes do not mix.
pub(super) const LINE_LEN: usize = 1024;

/// What every line begins with.
const PREFIX: &str = "sluice: ";

/// Bytes kept free for the end of a line.
const ENDING_LEN: usize = "...\n".len();

impl Line {
    pub(super) const fn new() -> Line {
        Line {
            text: [0; LINE_LEN],
            len: 0,
            cut: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one statement.
    pub(super) fn add(&mut self, statement: fmt::Arguments<'_>) {
        // Writing to a `Line` never fails. If a formatter does, its text so far stays.
        let _ = self.write_str(if self.is_empty() { PREFIX } else { "; " });
        let _ = self.write_fmt(statement);
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.text.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// The line with its end; nothing if it has no statement.
    pub(super) fn finished(&mut self) -> &[u8] {
        match (self.len, self.cut) {
            (0, _) => {}
            (_, true) => self.put(b"...\n"),
            (_, false) => self.put(b"\n"),
        }
        self.text.get(..self.len).unwrap_or_default()
    }

    /// Writes the line to stderr, if that takes it now.
    pub(super) fn emit(&mut self) {
        if is_fit_for_a_line(libc::STDERR_FILENO) {
            let text = self.finished();
            // SAFETY: `text` is borrowed until the call returns. A failure is ignored: it could not
            // be reported.
            let _ =
                unsafe { syscall!(Sysno::write, libc::STDERR_FILENO, text.as_ptr(), text.len()) };
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Byte by byte, since lines are rare. Statements are ASCII, so no character is split.
        for byte in text.bytes() {
            if self.len >= LINE_LEN - ENDING_LEN {
                self.cut = true;
                break;
            }
            self.put(&[byte]);
        }
        Ok(())
    }
}

/// True if a line may be written to `fd`. Not to a socket, whose peer did not ask for it, and not
/// where a write would block or raise SIGPIPE: the program alone would have done neither.
pub(super) fn is_fit_for_a_line(fd: libc::c_int) -> bool {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills `stat`, which has the length and layout of the kernel's struct stat
    // on 64-bit architectures, where libc has no other.
    if unsafe { syscall!(Sysno::fstat, fd, stat.as_mut_ptr()) }.is_err() {
        return false;
    }
    // SAFETY: fstat succeeded, so it has filled the whole struct.
    let stat = unsafe { stat.assume_init() };
    if !matches!(
        stat.st_mode & libc::S_IFMT,
        libc::S_IFREG | libc::S_IFCHR | libc::S_IFIFO
    ) {
        return false;
    }
    let mut ready = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one live pollfd and timespec; a null mask leaves the signals as they are.
    let polled = unsafe { syscall!(Sysno::ppoll, &raw mut ready, 1, &raw const now, 0, 0) };
    polled == Ok(1) && ready.revents == libc::POLLOUT
}
