//! The functions of libibverbs and librdmacm, looked up when the first link between hosts is
//! wanted.
//!
//! Neither library is linked: a program on a host without them would not start. What verbs.h
//! defines inline (posting, polling) goes through the device's own table and needs no symbol. A
//! host without a device never opens them.

use super::ffi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use crate::sys;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

macro_rules! functions {
    ($($lib:ident {
        $(fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)*
        $(maybe $newer:ident($($newer_arg:ty),*) -> $newer_ret:ty;)*
    })*) => {
        /// The functions; named as the libraries name them, and documented there.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "each is the manual page of its name")]
        pub struct Api {
            $($(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub $newer: Option<unsafe extern "C" fn($($newer_arg),*) -> $newer_ret>,)*)*
        }

        impl Api {
            /// A table for tests, whose functions end the process.
            #[cfg(any(test, feature = "testing"))]
            pub(super) fn absent() -> Self {
                Self {
                    $($($name: {
                        #[allow(clippy::disallowed_methods, reason = "of a test")]
                        unsafe extern "C" fn absent($(_: $arg),*) -> $ret {
                            std::process::abort()
                        }
                        absent
                    },)*
                    $($newer: None,)*)*
                }
            }

            /// `None`: a library, or one of its functions, is missing.
            fn open() -> Option<Self> {
                $(let $lib = library(LIBRARIES.$lib)?;)*
                Some(Self {
                    // SAFETY: the symbols have these types in every release of rdma-core from
                    // 1.8.28 on; a null pointer was taken out by `symbol`.
                    $($($name: unsafe {
                        core::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) -> $ret,
                        >(symbol($lib, concat!(stringify!($name), "\0"))?)
                    },)*
                    // SAFETY: as above, from the release on that has it.
                    $($newer: symbol($lib, concat!(stringify!($newer), "\0")).map(|found| unsafe {
                        core::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($newer_arg),*) -> $newer_ret,
                        >(found)
                    }),)*)*
                })
            }
        }
    };
}

struct Libraries {
    ibverbs: &'static CStr,
    rdmacm: &'static CStr,
}

const LIBRARIES: Libraries = Libraries {
    ibverbs: c"libibverbs.so.1",
    rdmacm: c"librdmacm.so.1",
};

functions! {
    ibverbs {
        fn ibv_fork_init() -> c_int;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            *mut ibv_context,
            c_int,
            *mut c_void,
            *mut ibv_comp_channel,
            c_int,
        ) -> *mut ibv_cq;
        fn ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, u32) -> ();
        fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event) -> ();
        maybe ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    }
    rdmacm {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel) -> ();
        fn rdma_create_id(
            *mut rdma_event_channel,
            *mut *mut rdma_cm_id,
            *mut c_void,
            rdma_port_space::Type,
        ) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_resolve_addr(
            *mut rdma_cm_id,
            *mut libc::sockaddr,
            *mut libc::sockaddr,
            c_int,
        ) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id) -> ();
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_get_src_port(*mut rdma_cm_id) -> u16;
    }
}

/// Opens a library for good.
fn library(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name; the library's constructors make nothing but tables.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(library: *mut c_void, name: &'static str) -> Option<*mut c_void> {
    // SAFETY: the handle of `library`, and a name that ends in NUL.
    let found = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    (!found.is_null()).then_some(found)
}

/// Does this host's kernel know RDMA devices? One system call, two where it does.
#[must_use]
pub fn is_any_device() -> bool {
    sys::open(c"/sys/class/infiniband", libc::O_PATH | libc::O_DIRECTORY).is_ok()
}

/// So many descriptors are open at once while the first device is opened.
const OPENED: usize = 8;

/// The functions, loaded at the first call where this host has a device; `None`: not here, or not
/// while few descriptors are left, of which libibverbs would complain on the program's stderr.
///
/// Opens and reads files: for the control thread.
pub fn load() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    if API.get().is_none() {
        let free: Result<Vec<_>, _> = (0..OPENED).map(|_| sys::eventfd(0)).collect();
        drop(free.ok()?);
    }
    API.get_or_init(|| {
        if !is_any_device() {
            return None;
        }
        let api = Api::open()?;
        // SAFETY: no argument. From 5.12 on the kernel copies pinned pages at fork and this changes
        // nothing.
        (unsafe { (api.ibv_fork_init)() } == 0).then_some(api)
    })
    .as_ref()
}
