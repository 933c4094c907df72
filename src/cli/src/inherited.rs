//! What a program that the tool becomes must find as its caller left it. Rust's own start, before
//! `main`, ignores SIGPIPE and opens /dev/null in the place of a closed descriptor 0, 1 or 2; its
//! `exec` then leaves the one at its default and the other open.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits 0 to 2: this descriptor was closed. Written once, before there is a second thread.
static FOUND: AtomicU8 = AtomicU8::new(0);

/// SIGPIPE was ignored.
const IGNORES_SIGPIPE: u8 = 1 << 3;

const STANDARD: [libc::c_int; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// The loader calls what is listed there before `main`, in which Rust's start is.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    let mut found = 0;
    for fd in STANDARD {
        // SAFETY: asks for the flags of a descriptor, which need not be open.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            found |= 1 << fd;
        }
    }
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: changes nothing, and writes the action that is set to a place of that type.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all zeroes are a valid value, and so is what the call wrote.
    let action = unsafe { action.assume_init() };
    if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
        found |= IGNORES_SIGPIPE;
    }
    FOUND.store(found, Ordering::Relaxed);
}

/// Lets `command` hand over what the tool's caller handed to the tool.
pub fn restore(command: &mut Command) {
    let found = FOUND.load(Ordering::Relaxed);
    let restore = move || {
        for fd in STANDARD {
            if found & 1 << fd != 0 {
                // SAFETY: what is open there is Rust's /dev/null, which nothing here owns.
                unsafe { libc::close(fd) };
            }
        }
        if found & IGNORES_SIGPIPE != 0 {
            // SAFETY: no handler is set that could be called.
            let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            if before == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only. It runs in this process, just before `exec`.
    unsafe { command.pre_exec(restore) };
}

/// Lets the process that `command` starts end with this one, however that ends.
pub fn ends_with_us(command: &mut Command) {
    let ends = || {
        // SAFETY: a number and a signal.
        let set = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if set == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(ends) };
}
