//! One line for stderr: what somebody else chose is made harmless, nothing is allocated, nobody is
//! waited for.

use core::ffi::CStr;
use core::fmt::{self, Write};
use sluice_fabric::sys::Errno;
use syscalls::{Sysno, syscall};

/// Bytes that somebody else chose, made harmless for a terminal and short.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

/// As [`Shown`], in quotation marks.
pub(super) struct Quoted<'a>(pub(super) &'a [u8]);

/// As [`Shown`], for the name of a file, whose end matters.
pub struct Path<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to recognise a value by.
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

/// What an error of the kernel means, in the words of strerror(3) for the C locale.
pub struct Meaning(pub Errno);

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // strerror(3), from glibc 2.32 on: a constant text, made without a lock and without an
        // allocation, or null.
        type Description = unsafe extern "C" fn(libc::c_int) -> *const libc::c_char;
        // SAFETY: a name; the function has had this type since it came to be.
        let description = unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"strerrordesc_np".as_ptr());
            core::mem::transmute::<*mut libc::c_void, Option<Description>>(found)
        };
        // SAFETY: any number may be asked for.
        let text = description.map_or(core::ptr::null(), |describe| unsafe { describe(self.0) });
        if text.is_null() {
            return write!(f, "error {}", self.0);
        }
        // SAFETY: not null, so a C string that is constant.
        let text = unsafe { CStr::from_ptr(text) };
        f.write_str(text.to_str().unwrap_or_default())
    }
}

/// One line for stderr, built without an allocator. What does not fit is cut off and marked.
pub(super) struct Line {
    text: [u8; LINE_LEN],
    len: usize,
    cut: bool,
}

/// Room for all settings wrong at once, and far below what a pipe takes in one piece (PIPE_BUF), so
/// that lines of several processes do not mix.
pub(super) const LINE_LEN: usize = 1024;

/// What every line begins with.
const PREFIX: &str = "sluice: ";

/// What is kept free for the end of a line.
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
        // Writing into a `Line` never fails; a formatter that does has said what it could.
        let _ = self.write_str(if self.is_empty() { PREFIX } else { "; " });
        let _ = self.write_fmt(statement);
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.text.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    pub(super) fn finished(&mut self) -> &[u8] {
        self.put(if self.cut { b"...\n" } else { b"\n" });
        self.text.get(..self.len).unwrap_or_default()
    }

    /// Writes the line to stderr, if somebody there can and will read it now.
    pub(super) fn emit(&mut self) {
        if is_fit_for_a_line(libc::STDERR_FILENO) {
            let text = self.finished();
            // SAFETY: `text` is borrowed until the call returns. Nothing is done about a failure:
            // there is nobody to tell.
            let _ =
                unsafe { syscall!(Sysno::write, libc::STDERR_FILENO, text.as_ptr(), text.len()) };
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte at a time: a line is rare. Statements are ASCII, so no character is split.
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

/// May a line be written to `fd`? Not to a socket, whose peer did not ask for it, and not where
/// writing would block or raise SIGPIPE: the program alone would have done neither.
pub(super) fn is_fit_for_a_line(fd: libc::c_int) -> bool {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills `stat`, which is ours and of the length and layout of the kernel's
    // struct stat on 64-bit architectures, where libc has no other.
    if unsafe { syscall!(Sysno::fstat, fd, stat.as_mut_ptr()) }.is_err() {
        return false;
    }
    // SAFETY: fstat succeeded, so it filled the whole struct.
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
    // SAFETY: one pollfd and one timespec of our own; a null mask leaves the signals as they are.
    let polled = unsafe { syscall!(Sysno::ppoll, &raw mut ready, 1, &raw const now, 0, 0) };
    polled == Ok(1) && ready.revents == libc::POLLOUT
}
