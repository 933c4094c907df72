//! io_uring by `syscall()`: what its entries do to descriptors that concern us (linux/io_uring.h).

use super::raw::pointer;
use super::{epoll, fd, msg};
use crate::api::uring::{self, Params, Sqe};
use crate::api::{self, caller};
use crate::boundary::{NO_FD, contained, created, raw_use, tell};
use crate::errno;
use libc::{c_int, c_uint, epoll_event, msghdr};
use sluice_stats::Reason;

// IORING_OP_*
const NOP: u8 = 0;
const POLL_REMOVE: u8 = 7;
const SENDMSG: u8 = 9;
const TIMEOUT: u8 = 11;
const TIMEOUT_REMOVE: u8 = 12;
const ASYNC_CANCEL: u8 = 14;
const LINK_TIMEOUT: u8 = 15;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const MADVISE: u8 = 25;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
const PROVIDE_BUFFERS: u8 = 31;
const REMOVE_BUFFERS: u8 = 32;
const TEE: u8 = 33;
const SOCKET: u8 = 45;
const SENDMSG_ZC: u8 = 48;

// IOSQE_*
const FIXED_FILE: u8 = 1;
const LINKS: u8 = 4 | 8;
const SKIPS_SUCCESS: u8 = 0x40;

/// The second descriptor of a splice is a registered file.
const FD_IN_FIXED: u32 = 1 << 31;
/// `IORING_ENTER_REGISTERED_RING`: not by a descriptor.
const BY_INDEX: c_uint = 16;

// IORING_REGISTER_*
const REGISTER_FILES: u32 = 2;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_FILES2: u32 = 13;
const REGISTER_FILES_UPDATE2: u32 = 14;
const REGISTER_RESIZE_RINGS: u32 = 33;
/// Beside any of them: the ring is given by an index.
const USE_REGISTERED_RING: u32 = 1 << 31;

/// `io_uring_setup` returned `ret`.
///
/// # Safety
/// If it is no error the kernel has filled the settings at `params`.
pub unsafe fn made(ret: c_int, params: *const Params) -> c_int {
    if ret < 0 {
        return ret;
    }
    // SAFETY: the caller's promise.
    let params = unsafe { *params };
    let ring = if params.makes_descriptor() {
        created(ret)
    } else {
        ret
    };
    tell(NO_FD, || uring::made(ring, &params));
    ring
}

/// Before `io_uring_enter(ring, count, ..., flags)`.
pub fn entering(ring: c_int, count: c_uint, flags: c_uint) {
    let entries = if flags & BY_INDEX == 0 {
        contained(NO_FD, || uring::entries(ring, count)).flatten()
    } else {
        None
    };
    let Some(entries) = entries else {
        return tell(NO_FD, uring::not_seen);
    };
    let errno = errno::kept();
    let mut follows = false;
    for entry in entries {
        // SAFETY: the program has filled it, and leaves it to the kernel by this call.
        let entry = unsafe { &mut *entry };
        asks(entry, follows);
        follows = entry.flags & LINKS != 0;
    }
    errno.restore();
}

/// `follows`: the kernel comes to it only if that before it succeeds.
fn asks(entry: &mut Sqe, follows: bool) {
    let uses = |fd: i32| raw_use(fd, Reason::IoUring);
    match entry.opcode {
        // What stands for a descriptor there is none.
        NOP | POLL_REMOVE | TIMEOUT | TIMEOUT_REMOVE | ASYNC_CANCEL | LINK_TIMEOUT | MADVISE
        | PROVIDE_BUFFERS | REMOVE_BUFFERS | SOCKET => {}
        EPOLL_CTL => changes_set(entry, follows),
        CLOSE => {
            // What the kernel refuses closes nothing.
            let others = (entry.off, entry.addr, entry.len, entry.op_flags);
            let is_usual = others == (0, 0, 0, 0) && (entry.buf[0], entry.splice_fd_in) == (0, 0);
            if is_usual && entry.flags & FIXED_FILE == 0 && !fd::closing(entry.fd) {
                // For the program it is not open.
                entry.fd = -1;
            }
        }
        FILES_UPDATE => {
            // SAFETY: the program vouches for `len` numbers.
            unsafe { registered(entry.addr as usize, entry.len) };
        }
        operation => {
            if entry.flags & FIXED_FILE == 0 {
                uses(entry.fd);
            }
            if matches!(operation, SPLICE | TEE) && entry.op_flags & FD_IN_FIXED == 0 {
                uses(entry.splice_fd_in);
            }
            if matches!(operation, SENDMSG | SENDMSG_ZC) {
                // SAFETY: the program vouches for the header.
                unsafe { msg::takes(pointer::<msghdr>(entry.addr as usize)) };
            }
        }
    }
}

/// `epoll_ctl(fd, len, off, addr)`, which is made here and now; if it fails the kernel makes it
/// again, and says why.
fn changes_set(entry: &mut Sqe, follows: bool) {
    let (set, operation, fd) = (entry.fd, entry.len as c_int, entry.off as c_int);
    if api::lookup(set).is_none() && api::lookup(fd).is_none() {
        return;
    }
    let usual = entry.flags & !(LINKS | SKIPS_SUCCESS) == 0
        && (entry.ioprio, entry.buf[0], entry.splice_fd_in) == (0, 0, 0);
    if follows || !usual {
        raw_use(set, Reason::IoUring);
        return raw_use(fd, Reason::IoUring);
    }
    let event = pointer::<epoll_event>(entry.addr as usize).cast_mut();
    // SAFETY: the program vouches for the event, as it would to epoll_ctl.
    if unsafe { epoll::on_epoll_ctl(set, operation, fd, event) } == 0 {
        entry.opcode = NOP;
        (entry.fd, entry.off, entry.addr) = (-1, 0, 0);
        (entry.len, entry.op_flags) = (0, 0);
    }
}

/// Before `io_uring_register(ring, operation, argument, count)`.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn registering(operation: c_uint, argument: usize, count: c_uint) {
    // The structures of linux/io_uring.h: io_uring_files_update, io_uring_rsrc_register,
    // io_uring_rsrc_update2. Of what is not there, none.
    let at = |offset: usize| argument.wrapping_add(offset);
    // SAFETY: any bytes are a number; the C caller vouches for it where it is not known to be
    // missing.
    let word = |offset| unsafe { caller::copy_on_trust(pointer::<u32>(at(offset))) }.unwrap_or(0);
    // SAFETY: as above.
    let long = |offset| unsafe { caller::copy_on_trust(pointer::<u64>(at(offset))) }.unwrap_or(0);
    let address = |offset: usize| long(offset) as usize;
    let operation = operation & !USE_REGISTERED_RING;
    if argument == 0 {
        return;
    }
    // SAFETY: the C caller vouches for the numbers.
    unsafe {
        match operation {
            REGISTER_FILES => registered(argument, count),
            REGISTER_FILES_UPDATE => registered(address(8), count),
            REGISTER_FILES2 => registered(address(16), word(0)),
            REGISTER_FILES_UPDATE2 => registered(address(8), word(24)),
            REGISTER_RESIZE_RINGS => tell(NO_FD, uring::not_seen),
            _ => {}
        }
    }
}

/// The ring may use these files from now on.
///
/// # Safety
/// `count` numbers are at `address`, or that is not there.
unsafe fn registered(address: usize, count: u32) {
    if address == 0 {
        return;
    }
    for i in 0..count as usize {
        let number = pointer::<c_int>(address).wrapping_add(i);
        // SAFETY: any bytes are a number, and the caller's promise.
        let Some(fd) = (unsafe { caller::copy_on_trust(number) }) else {
            // The kernel's to refuse.
            return;
        };
        raw_use(fd, Reason::IoUring);
    }
}
