//! Stream input and output by descriptor: read, write, their vectors, and what moves whole files.

use crate::api;
use crate::boundary::{raw_read, raw_use, serve};
use crate::real::test_cancel;
use libc::{
    SPLICE_F_NONBLOCK, c_int, c_uint, c_void, iovec, loff_t, off_t, off64_t, size_t, ssize_t,
};
use sluice_stats::Reason;

hooks! {
    unsafe fn read(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
    ) -> ssize_t => on_read, tracked e of fd {
        test_cancel();
        let iov = iovec { iov_base: buf, iov_len: len };
        serve_waiting!(fd, recv(e, fd, &iov, 1, api::READ), forward!(read(fd, buf, len)))
    }

    unsafe fn readv(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
    ) -> ssize_t => on_readv, tracked e of fd {
        let Some(n) = vector(count) else { return forward!(readv(fd, iov, count)) };
        test_cancel();
        serve_waiting!(fd, readv(e, fd, iov, n, api::READ), forward!(readv(fd, iov, count)))
    }

    unsafe fn write(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
    ) -> ssize_t => on_write, tracked e of fd {
        test_cancel();
        let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
        serve_waiting!(fd, send(e, fd, &iov, 1, 0), forward!(write(fd, buf, len)))
    }

    unsafe fn writev(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
    ) -> ssize_t => on_writev, tracked e of fd {
        let Some(n) = vector(count) else { return forward!(writev(fd, iov, count)) };
        test_cancel();
        serve_waiting!(fd, writev(e, fd, iov, n, 0), forward!(writev(fd, iov, count)))
    }

    unsafe fn sendfile(
        out_fd: c_int,
        in_fd: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> ssize_t => on_sendfile {
        raw_read(in_fd, Reason::Splice);
        let Some(e) = api::lookup(out_fd) else {
            return forward!(sendfile(out_fd, in_fd, offset, count));
        };
        serve_feeding!(
            out_fd,
            sendfile(e, out_fd, in_fd, offset, count),
            forward!(sendfile(out_fd, in_fd, offset, count))
        )
    }

    unsafe fn sendfile64(
        out_fd: c_int,
        in_fd: c_int,
        offset: *mut off64_t,
        count: size_t,
    ) -> ssize_t => on_sendfile64 {
        raw_read(in_fd, Reason::Splice);
        let Some(e) = api::lookup(out_fd) else {
            return forward!(sendfile64(out_fd, in_fd, offset, count));
        };
        serve_feeding!(
            out_fd,
            sendfile(e, out_fd, in_fd, offset, count),
            forward!(sendfile64(out_fd, in_fd, offset, count))
        )
    }

    unsafe fn splice(
        in_fd: c_int,
        in_offset: *mut loff_t,
        out_fd: c_int,
        out_offset: *mut loff_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t => on_splice {
        raw_read(in_fd, Reason::Splice);
        let kernel = || {
            forward!(splice(in_fd, in_offset, out_fd, out_offset, len, flags)) as ssize_t
        };
        let Some(e) = api::lookup(out_fd) else { return kernel() };
        serve(out_fd, || api::splice(e, out_fd, flags & SPLICE_F_NONBLOCK != 0), kernel)
    }

    unsafe fn tee(in_fd: c_int, out_fd: c_int, len: size_t, flags: c_uint) -> ssize_t => on_tee {
        raw_read(in_fd, Reason::Splice);
        raw_use(out_fd, Reason::Splice);
        forward!(tee(in_fd, out_fd, len, flags))
    }

    unsafe fn vmsplice(
        fd: c_int,
        iov: *const iovec,
        count: size_t,
        flags: c_uint,
    ) -> ssize_t => on_vmsplice {
        raw_use(fd, Reason::Splice);
        forward!(vmsplice(fd, iov, count, flags))
    }

    // The real function ends the program when the buffer is too small: let it.
    unsafe fn __read_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
    ) -> ssize_t => on_read_chk {
        if len > room {
            return forward!(__read_chk(fd, buf, len, room));
        }
        // SAFETY: read's contract is this function's, kept by the C caller.
        unsafe { on_read(fd, buf, len) }
    }
}

late_hooks! {
    unsafe fn preadv2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t => on_preadv2 {
        let Some((e, n, recv_flags)) = positionless(fd, count, offset, flags) else {
            return late!(preadv2(fd, iov, count, offset, flags));
        };
        test_cancel();
        serve_waiting!(
            fd,
            readv(e, fd, iov, n, recv_flags | api::READ),
            late!(preadv2(fd, iov, count, offset, flags))
        )
    }

    unsafe fn preadv64v2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off64_t,
        flags: c_int,
    ) -> ssize_t => on_preadv64v2 {
        let Some((e, n, recv_flags)) = positionless(fd, count, offset, flags) else {
            return late!(preadv64v2(fd, iov, count, offset, flags));
        };
        test_cancel();
        serve_waiting!(
            fd,
            readv(e, fd, iov, n, recv_flags | api::READ),
            late!(preadv64v2(fd, iov, count, offset, flags))
        )
    }

    unsafe fn pwritev2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t => on_pwritev2 {
        let Some((e, n, send_flags)) = positionless(fd, count, offset, flags) else {
            return late!(pwritev2(fd, iov, count, offset, flags));
        };
        test_cancel();
        serve_waiting!(
            fd,
            writev(e, fd, iov, n, send_flags),
            late!(pwritev2(fd, iov, count, offset, flags))
        )
    }

    unsafe fn pwritev64v2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off64_t,
        flags: c_int,
    ) -> ssize_t => on_pwritev64v2 {
        let Some((e, n, send_flags)) = positionless(fd, count, offset, flags) else {
            return late!(pwritev64v2(fd, iov, count, offset, flags));
        };
        test_cancel();
        serve_waiting!(
            fd,
            writev(e, fd, iov, n, send_flags),
            late!(pwritev64v2(fd, iov, count, offset, flags))
        )
    }
}

aliases! {
    unsafe fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = on_read;
    unsafe fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = on_write;
}

/// The length of a vector that the kernel accepts (UIO_MAXIOV); others fail in the real call.
fn vector(count: c_int) -> Option<size_t> {
    size_t::try_from(count).ok().filter(|&n| n <= 1024)
}

/// A `preadv2` or `pwritev2` on a tracked descriptor as `readv` or `writev` with MSG_* flags, or
/// `None` where the real call shall decide. Only offset -1 moves bytes on a socket (others fail
/// with ESPIPE, preadv2(2)); of the flags a socket heeds RWF_NOWAIT alone, which is MSG_DONTWAIT
/// there (net/socket.c, sock_read_iter).
fn positionless(
    fd: c_int,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> Option<(api::Entry, size_t, c_int)> {
    let e = api::lookup(fd)?;
    let n = vector(count)?;
    let msg_flags = match flags {
        _ if offset != -1 => return None,
        0 => 0,
        libc::RWF_NOWAIT => libc::MSG_DONTWAIT,
        _ => {
            raw_use(fd, Reason::Preadv2);
            return None;
        }
    };
    Some((e, n, msg_flags))
}
