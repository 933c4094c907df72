//! Types and constants of rdma-core's headers, and the functions that these define inline.
//!
//! Nothing here links or needs rdma-core: docs/decisions/022-verbs-bindings.md.

#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    dead_code,
    reason = "made from C headers, and documented there"
)]
mod generated;

pub use generated::*;

use core::ffi::c_int;

/// Calls a function of the device's own table, which its driver has filled in.
macro_rules! call {
    ($object:ident.$op:ident($($arg:ident),*)) => {{
        // SAFETY: by the caller's word an object that libibverbs has made and not yet destroyed.
        let context = unsafe { (*$object).context };
        // SAFETY: libibverbs keeps the context of an object for as long as the object.
        let op = unsafe { (*context).ops.$op };
        // SAFETY: the driver's function for its own object, with the caller's arguments.
        op.map(|op| unsafe { op($object, $($arg),*) })
    }};
}

/// Completions that were taken, or a negative number.
///
/// # Safety
/// `ibv_poll_cq(3)`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, room: c_int, completions: *mut ibv_wc) -> c_int {
    call!(cq.poll_cq(room, completions)).unwrap_or(-libc::EOPNOTSUPP)
}

/// 0 or an errno.
///
/// # Safety
/// `ibv_req_notify_cq(3)`.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    call!(cq.req_notify_cq(solicited)).unwrap_or(libc::EOPNOTSUPP)
}

/// 0 or an errno.
///
/// # Safety
/// `ibv_post_send(3)`.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    requests: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    call!(qp.post_send(requests, bad)).unwrap_or(libc::EOPNOTSUPP)
}

/// 0 or an errno.
///
/// # Safety
/// `ibv_post_recv(3)`.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    call!(qp.post_recv(requests, bad)).unwrap_or(libc::EOPNOTSUPP)
}
