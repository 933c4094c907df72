//! A connection's life: socket, listen, accept, connect, shutdown, options.

use crate::boundary::{created, serve, tell};
use crate::{api, errno};
use libc::{c_int, c_void, sockaddr, socklen_t, ssize_t};

hooks! {
    unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int => on_socket {
        let fd = forward!(socket(domain, kind, protocol));
        socket_made(fd, domain, kind, protocol)
    }

    unsafe fn socketpair(
        domain: c_int,
        kind: c_int,
        protocol: c_int,
        pair: *mut c_int,
    ) -> c_int => on_socketpair {
        let ret = forward!(socketpair(domain, kind, protocol, pair));
        if ret == 0 {
            // SAFETY: the call succeeded, so the kernel has written both numbers there.
            unsafe { pair_made(pair) };
        }
        ret
    }

    unsafe fn accept(
        listener: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
    ) -> c_int => on_accept {
        let fd = forward!(accept(listener, addr, len));
        accepted(listener, fd)
    }

    unsafe fn accept4(
        listener: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int,
    ) -> c_int => on_accept4 {
        let fd = forward!(accept4(listener, addr, len, flags));
        accepted(listener, fd)
    }

    unsafe fn listen(fd: c_int, backlog: c_int) -> c_int => on_listen {
        let ret = forward!(listen(fd, backlog));
        listening(fd, ret)
    }

    unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int => on_connect {
        if let Some(e) = api::lookup(fd) {
            // SAFETY: the C caller vouches for the address.
            tell(fd, || unsafe { api::before_connect(e, fd, addr, len) });
        }
        let ret = forward!(connect(fd, addr, len));
        connected(fd, ret)
    }

    unsafe fn shutdown(fd: c_int, how: c_int) -> c_int => on_shutdown {
        if let Some(e) = api::lookup(fd) {
            let kernel = || forward!(shutdown(fd, how)) as ssize_t;
            return serve(fd, || api::shutdown(e, fd, how), kernel) as c_int;
        }
        forward!(shutdown(fd, how))
    }

    unsafe fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int => on_setsockopt, tracked e of fd {
        // SAFETY: the engine asks for the arguments of a C caller, and these are that.
        tell(fd, || unsafe { api::before_setsockopt(e, fd, level, name, value, len) });
        let ret = forward!(setsockopt(fd, level, name, value, len));
        if ret == 0 {
            // SAFETY: as above.
            tell(fd, || unsafe { api::after_setsockopt(fd, level, name, value) });
        }
        ret
    }

    unsafe fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int => on_getsockopt, tracked e of fd {
        tell(fd, || api::before_getsockopt(e, level, name));
        let before = api::own_value(e, level, name);
        let ret = forward!(getsockopt(fd, level, name, value, len));
        if let Some(own) = api::own_value(e, level, name).or(before) && ret == 0 {
            // SAFETY: the call succeeded, so the kernel has written the length there.
            let room = unsafe { *len }.min(size_of::<c_int>() as socklen_t) as usize;
            // SAFETY: the kernel has written `*len` bytes there, and no more than that are copied.
            unsafe { core::ptr::copy_nonoverlapping((&raw const own).cast(), value, room) };
        }
        ret
    }
}

aliases! {
    unsafe fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = on_connect;
}

/// `socket()` returned `fd`.
pub fn socket_made(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if fd >= 0 {
        tell(fd, || api::socket_created(fd, domain, kind, protocol));
    }
    fd
}

/// A call that makes two descriptors succeeded.
///
/// # Safety
/// `pair` points to two numbers.
pub unsafe fn pair_made(pair: *const c_int) {
    // SAFETY: the caller vouches for two numbers there.
    let [first, second] = unsafe { pair.cast::<[c_int; 2]>().read() };
    created(first);
    created(second);
}

/// `accept()` on `listener` returned `fd`.
pub fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 {
        tell(fd, || api::accepted(listener, fd));
    }
    fd
}

/// `listen()` returned `ret`.
pub fn listening(fd: c_int, ret: c_int) -> c_int {
    if ret == 0 {
        tell(fd, || api::listening(fd));
    }
    ret
}

/// `connect()` returned `ret`.
pub fn connected(fd: c_int, ret: c_int) -> c_int {
    if api::lookup(fd).is_some() {
        let error = if ret == 0 { 0 } else { errno::current() };
        tell(fd, || api::connected(fd, ret, error));
    }
    ret
}
