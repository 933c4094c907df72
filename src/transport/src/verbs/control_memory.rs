//! Registered memory of a link beside its arena: control messages, no bytes of streams.

use super::terms::{DIRECT_RECEIVES, RECEIVES};
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_fabric::verbs::queue::Said;
use sluice_stream::wire::CONTROL_LEN;

/// Control slots that the peer writes to, control messages of this end on their way out, and
/// receive buffers, used where the device has no immediates.
#[derive(Debug)]
pub(crate) struct ControlMemory {
    pub at: *mut u8,
    pub slots: Region,
    pub out: Region,
    pub said: Region,
}

// SAFETY: an address. Only the pump reads and writes there, under the endpoint's lock.
unsafe impl Send for ControlMemory {}
// SAFETY: its methods only compute addresses; the pump uses these under the endpoint's lock.
unsafe impl Sync for ControlMemory {}

const SLOTS_LEN: usize = RECEIVES as usize * CONTROL_LEN;
/// One more than there are receives: RDMA READs of fences go there.
const SAID_LEN: usize = (RECEIVES as usize + DIRECT_RECEIVES as usize + 1) * size_of::<Said>();
const LEN: usize = (2 * SLOTS_LEN + SAID_LEN).next_multiple_of(4096);

impl ControlMemory {
    pub fn new(domain: &Domain) -> Result<Self, Errno> {
        // Shared: after a fork a write would copy a private page, and the device keep the old one.
        let at = sys::map_zeroes(LEN, true)?;
        // SAFETY: `LEN` bytes are mapped, until `drop` unmaps them after the queue pair.
        let registered = unsafe { Self::register(domain, at) };
        if registered.is_err() {
            // SAFETY: mapped here, and no region of it is registered.
            unsafe { sys::unmap(at, LEN) };
        }
        registered
    }

    /// # Safety
    /// [`LEN`] bytes are mapped at `at`, and stay so while a queue pair uses the regions.
    unsafe fn register(domain: &Domain, at: *mut u8) -> Result<Self, Errno> {
        // SAFETY: three parts of the `LEN` bytes that are mapped by this function's contract.
        unsafe {
            // The peer also READs here, to prove that its earlier writes have landed.
            let slots = domain.share(at, SLOTS_LEN)?;
            let out = domain.stage(at.add(SLOTS_LEN), SLOTS_LEN)?;
            let said = domain.take_in(at.add(2 * SLOTS_LEN), SAID_LEN)?;
            Ok(Self {
                at,
                slots,
                out,
                said,
            })
        }
    }

    pub fn slot(&self, slot: u16) -> *mut [u8; CONTROL_LEN] {
        let at = usize::from(slot % RECEIVES) * CONTROL_LEN;
        // SAFETY: the slot's number is below `RECEIVES`, so `at` is below `SLOTS_LEN`.
        unsafe { self.at.add(at) }.cast()
    }

    pub fn out(&self, slot: u16) -> *mut [u8; CONTROL_LEN] {
        // SAFETY: the mapping has a second `SLOTS_LEN` bytes after those that `slot` points into.
        unsafe { self.slot(slot).cast::<u8>().add(SLOTS_LEN) }.cast()
    }

    /// Where RDMA READs go, and the local key.
    pub(crate) fn sink(&self) -> (*mut u8, u32) {
        let at = 2 * SLOTS_LEN + SAID_LEN - size_of::<Said>();
        // SAFETY: the last `Said`, at the end of the `SAID_LEN` bytes after both kinds of slots.
        (unsafe { self.at.add(at) }, self.said.local_key())
    }

    /// The buffer of a receive of the link's queue pair.
    pub fn said(&self, slot: u64) -> *mut Said {
        self.said_at(slot as usize % usize::from(RECEIVES))
    }

    /// The buffer of a receive of the queue pair for direct transfers.
    pub fn notice(&self, slot: u64) -> *mut Said {
        self.said_at(usize::from(RECEIVES) + slot as usize % usize::from(DIRECT_RECEIVES))
    }

    fn said_at(&self, number: usize) -> *mut Said {
        let at = 2 * SLOTS_LEN + number * size_of::<Said>();
        // SAFETY: after both kinds of slots there is a `Said` for each receive, aligned.
        unsafe { self.at.add(at) }.cast()
    }
}

impl Drop for ControlMemory {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it. `EndpointState` drops its queue pair before this, so the device
        // uses none of the regions any more; a region's registration outlives the mapping.
        unsafe { sys::unmap(self.at, LEN) };
    }
}
