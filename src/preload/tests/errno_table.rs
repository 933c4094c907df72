//! The table from failures to errno. The library itself cannot be linked into a test, whose own
//! calls it would intercept, so the file is compiled here once more.

mod api {
    pub use sluice_engine::api::Error;
}
#[allow(dead_code)]
#[path = "../src/errno.rs"]
mod errno;

use api::Error;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

#[test]
fn each_failure_has_the_errno_that_tcp_leaves() {
    let table = [
        (
            Error::WouldBlock,
            libc::EAGAIN,
            "recv with MSG_DONTWAIT, nothing there",
        ),
        (
            Error::Interrupted,
            libc::EINTR,
            "recv, a handler without SA_RESTART ran",
        ),
        (
            Error::Reset,
            libc::ECONNRESET,
            "recv after the peer closed with unread input",
        ),
        (
            Error::BrokenPipe { raise: true },
            libc::EPIPE,
            "write after shutdown(SHUT_WR)",
        ),
        (
            Error::BrokenPipe { raise: false },
            libc::EPIPE,
            "the same with MSG_NOSIGNAL",
        ),
        (Error::BadAddress, libc::EFAULT, "recv into unmapped memory"),
        (
            Error::Kernel(libc::ETIMEDOUT),
            libc::ETIMEDOUT,
            "whatever the kernel said",
        ),
    ];
    for (error, number, when) in table {
        assert_eq!(errno::number(error), number, "{when}");
        if error != (Error::BrokenPipe { raise: true }) {
            errno::restore(0);
            assert_eq!(errno::fail(error), -1, "{when}");
            assert_eq!(errno::current(), number, "{when}");
        }
    }
}

#[test]
fn a_missing_function_fails_as_a_kernel_without_the_call() {
    assert_eq!(errno::missing::<i32>(), -1);
    assert_eq!(errno::current(), libc::ENOSYS);
}

/// Signals that the handler saw, and `errno` as it stood then.
static SEEN: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_pipe(_: libc::c_int) {
    SEEN.store(1, SeqCst);
    errno::restore(libc::ENOTTY);
}

#[test]
fn a_broken_pipe_raises_before_errno_is_set() {
    let handler = on_pipe as extern "C" fn(libc::c_int);
    // SAFETY: the handler stores to an atomic and to errno only.
    unsafe { libc::signal(libc::SIGPIPE, handler as libc::sighandler_t) };
    assert_eq!(errno::fail(Error::BrokenPipe { raise: false }), -1);
    assert_eq!(SEEN.load(SeqCst), 0, "MSG_NOSIGNAL");
    assert_eq!(errno::fail(Error::BrokenPipe { raise: true }), -1);
    assert_eq!(SEEN.load(SeqCst), 1);
    assert_eq!(errno::current(), libc::EPIPE);
}
