//! A device, and what belongs to one: its limits, the protection domains of its links, registered
//! memory.

use super::api::Api;
use super::ffi::{
    ibv_access_flags, ibv_async_event, ibv_context, ibv_device_attr, ibv_mr, ibv_node_type, ibv_pd,
    ibv_port_attr, ibv_port_state, ibv_transport_type,
};
use crate::sys::{self, Errno};
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// What a device can do: asked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests that a queue holds at most.
    pub queue: u32,
    /// Completions that a completion queue holds at most.
    pub completions: u32,
    /// Shared receive queues, and requests in one; 0: none.
    pub shared: u32,
    /// A WRITE can bring an immediate. iWARP has none: a SEND follows each WRITE there.
    pub immediate: bool,
    /// Its driver sends by a kernel socket, as the calling thread, which gets SIGPIPE where the
    /// peer has closed that: soft-iWARP.
    pub signals: bool,
    /// Work requests name the bytes of a region from any number on that its owner says. Soft-iWARP
    /// takes addresses alone.
    pub numbers: bool,
}

/// Linux, drivers/infiniband/sw/siw/siw.h: `SIW_VENDOR_ID`.
pub(super) const SOFT_IWARP: u32 = 0x0062_6d74;

/// An opened device. librdmacm opens each once and keeps it for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(super) api: &'static Api,
    pub(super) context: NonNull<ibv_context>,
    /// What it can do.
    pub limits: Limits,
}

// SAFETY: libibverbs may be called for one context by any thread; the context is never closed.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The device of a context that librdmacm has opened.
    ///
    /// # Safety
    /// `context` is one.
    ///
    /// # Errors
    /// The device's.
    pub(super) unsafe fn of(
        api: &'static Api,
        context: NonNull<ibv_context>,
    ) -> Result<Self, Errno> {
        // SAFETY: zeroes are a valid value of it.
        let mut attr: ibv_device_attr = unsafe { core::mem::zeroed() };
        // SAFETY: the caller's word, and room for the answer.
        let failed = unsafe { (api.ibv_query_device)(context.as_ptr(), &raw mut attr) };
        if failed != 0 {
            return Err(failed);
        }
        // SAFETY: an open context names its device.
        let device = unsafe { &*(*context.as_ptr()).device };
        let iwarp = device.transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP
            || device.node_type == ibv_node_type::IBV_NODE_RNIC;
        let soft_iwarp = iwarp && attr.vendor_id == SOFT_IWARP;
        let count = |n: c_int| u32::try_from(n).unwrap_or(0);
        Ok(Self {
            api,
            context,
            limits: Limits {
                queue: count(attr.max_qp_wr),
                completions: count(attr.max_cqe),
                shared: if attr.max_srq > 0 {
                    count(attr.max_srq_wr)
                } else {
                    0
                },
                immediate: !iwarp,
                signals: soft_iwarp,
                numbers: !soft_iwarp && api.ibv_reg_mr_iova.is_some(),
            },
        })
    }

    /// Its name, as the kernel has it.
    #[must_use]
    pub fn name(&self) -> &CStr {
        // SAFETY: an open context names its device, whose name ends in NUL within its array.
        unsafe { CStr::from_ptr((*(*self.context.as_ptr()).device).name.as_ptr()) }
    }

    /// The descriptors that libibverbs keeps of it.
    #[must_use]
    pub fn descriptors(&self) -> [c_int; 2] {
        // SAFETY: an open context.
        let context = unsafe { self.context.as_ref() };
        [context.cmd_fd, context.async_fd]
    }

    /// Puts them at other numbers: `copy` makes one of each. While nothing else is done to the
    /// device.
    pub fn rehouse(&self, mut copy: impl FnMut(c_int) -> Option<sys::Fd>) {
        let context = self.context.as_ptr();
        // SAFETY: an open context; libibverbs and its providers use whatever numbers stand there.
        unsafe {
            super::cm::rehouse(&raw mut (*context).cmd_fd, &mut copy);
            super::cm::rehouse(&raw mut (*context).async_fd, &mut copy);
        }
    }

    /// Descriptor of the device's asynchronous events, for a set to wait on.
    #[must_use]
    pub fn events(&self) -> c_int {
        // SAFETY: an open context.
        unsafe { (*self.context.as_ptr()).async_fd }
    }
}

/// What a device tells on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The queue pair of this number works no more.
    Pair(u32),
    /// The completion queue at this address works no more, nor do its queue pairs.
    Completions(usize),
    /// Nothing of the device works any more.
    Device,
    /// The state of a port has changed.
    Port,
    /// Nothing that matters.
    Nothing,
}

/// infiniband/verbs.h: enum ibv_event_type, whose values may be others than those known here.
mod told {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
}

impl Device {
    /// The next asynchronous event, if there is one: its descriptor is non-blocking. While no queue
    /// of the device is ended.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: an open context, and room for the answer.
        if unsafe { (self.api.ibv_get_async_event)(context, event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: written above; read as a number, since later libraries know more kinds.
        let kind = unsafe {
            (&raw const (*event.as_ptr()).event_type)
                .cast::<u32>()
                .read()
        };
        let about = event.as_ptr();
        let seen = match kind {
            told::QP_FATAL | told::QP_REQ_ERR | told::QP_ACCESS_ERR => {
                // SAFETY: an event of a queue pair names it; it lives until that is acknowledged.
                Trouble::Pair(unsafe { (*(*about).element.qp).qp_num })
            }
            // SAFETY: an event of a completion queue names it.
            told::CQ_ERR => Trouble::Completions(unsafe { (*about).element.cq } as usize),
            told::DEVICE_FATAL => Trouble::Device,
            told::PORT_ACTIVE | told::PORT_ERR => Trouble::Port,
            _ => Trouble::Nothing,
        };
        // SAFETY: the event that was got, given back once.
        unsafe { (self.api.ibv_ack_async_event)(event.as_mut_ptr()) };
        Some(seen)
    }

    /// Does the port carry anything now?
    #[must_use]
    pub fn is_port_active(&self, port: u8) -> bool {
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: an open context, and room for the answer.
        let failed =
            unsafe { (self.api.ibv_query_port)(self.context.as_ptr(), port, attr.as_mut_ptr()) };
        // SAFETY: zeroes are a valid value of it.
        failed == 0 && unsafe { attr.assume_init() }.state >= ibv_port_state::IBV_PORT_ACTIVE
    }
}

/// A protection domain. Each link has its own: a key opens memory to the peer of one link only.
#[derive(Debug)]
pub struct Domain {
    pub(super) device: Device,
    pub(super) pd: NonNull<ibv_pd>,
}

// SAFETY: libibverbs may be called for one domain by any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: Device) -> Result<Self, Errno> {
        // SAFETY: an open context.
        let pd = unsafe { (device.api.ibv_alloc_pd)(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(sys::last_errno)?;
        Ok(Self { device, pd })
    }

    /// Registers `len` bytes at `addr` that the peer may write to, and this end's work requests do
    /// not name.
    ///
    /// # Safety
    /// The memory stays mapped as long as the region is, and is used as memory that a device writes
    /// to.
    ///
    /// # Errors
    /// The device's; ENOMEM beyond RLIMIT_MEMLOCK.
    pub unsafe fn lend(&self, addr: *mut u8, len: usize) -> Result<Region, Errno> {
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the caller's word.
        unsafe { self.open(addr, len, access) }
    }

    /// As [`lend`](Self::lend), for memory that the peer may read, too.
    ///
    /// # Safety
    /// As [`lend`](Self::lend).
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub unsafe fn share(&self, addr: *mut u8, len: usize) -> Result<Region, Errno> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        // SAFETY: the caller's word.
        unsafe { self.open(addr, len, access) }
    }

    /// Registers `len` bytes at `addr` that this end posts, to be read by the device alone.
    ///
    /// # Safety
    /// The memory stays mapped as long as the region is.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub unsafe fn stage(&self, addr: *mut u8, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller's word.
        unsafe { self.register(addr, len, 0) }
    }

    /// Registers `len` bytes at `addr` for receives: the device writes there what the peer sends.
    ///
    /// # Safety
    /// As [`lend`](Self::lend).
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub unsafe fn take_in(&self, addr: *mut u8, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller's word.
        unsafe { self.register(addr, len, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE) }
    }

    /// Memory that the peer reaches, by numbers that tell it nothing of where this process has its
    /// memory: the first byte's is its place in its page. The device needs that much, to make whole
    /// pages of whole pages.
    ///
    /// # Safety
    /// As [`lend`](Self::lend).
    unsafe fn open(&self, addr: *mut u8, len: usize, access: u32) -> Result<Region, Errno> {
        let api = self.device.api;
        let register_at = api.ibv_reg_mr_iova.filter(|_| self.device.limits.numbers);
        let Some(register_at) = register_at else {
            // SAFETY: the caller's word.
            return unsafe { self.register(addr, len, access) };
        };
        let first = (addr.addr() % sys::page_size()) as u64;
        let pd = self.pd.as_ptr();
        // SAFETY: the caller's memory, a domain that lives.
        let mr = unsafe { register_at(pd, addr.cast(), len, first, access as c_int) };
        let mr = NonNull::new(mr).ok_or_else(sys::last_errno)?;
        Ok(Region { api, mr, first })
    }

    /// # Safety
    /// As [`lend`](Self::lend).
    unsafe fn register(&self, addr: *mut u8, len: usize, access: u32) -> Result<Region, Errno> {
        let api = self.device.api;
        let pd = self.pd.as_ptr();
        // SAFETY: the caller's memory, a domain that lives.
        let mr = unsafe { (api.ibv_reg_mr)(pd, addr.cast(), len, access as c_int) };
        let mr = NonNull::new(mr).ok_or_else(sys::last_errno)?;
        let first = addr as u64;
        Ok(Region { api, mr, first })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made in `new`; regions and queues in it are gone by the order of fields of
        // their owner.
        unsafe { (self.device.api.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Registered memory. When it is dropped no byte lands there any more.
#[derive(Debug)]
pub struct Region {
    api: &'static Api,
    mr: NonNull<ibv_mr>,
    first: u64,
}

// SAFETY: as for the domain.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// By which this end's own work requests name it.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        // SAFETY: registered in `register`.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// By which the peer names it.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: registered in `register`.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// What the peer calls its first byte, with that key: an address only where the device knows
    /// nothing else.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Registered until [`end_raw`](Self::end_raw): a number that is not 0.
    #[must_use]
    pub fn into_raw(self) -> usize {
        let raw = self.mr.as_ptr().expose_provenance();
        core::mem::forget(self);
        raw
    }

    /// Deregisters the region of this number.
    ///
    /// # Safety
    /// [`into_raw`](Self::into_raw) has given it, and nobody else ends it.
    pub unsafe fn end_raw(raw: usize) {
        if let Some(api) = super::api::load()
            && let Some(mr) = NonNull::new(core::ptr::with_exposed_provenance_mut(raw))
        {
            drop(Self { api, mr, first: 0 });
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made in `register`.
        unsafe { (self.api.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}
