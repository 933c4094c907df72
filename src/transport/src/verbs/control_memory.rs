//! Memory of a link beside its arena, for what is no stream's byte.

use super::terms::RECEIVES;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_fabric::verbs::queue::Said;
use sluice_stream::wire::CONTROL_LEN;

/// Control slots of the peer's, of ours on their way out, and what a SEND says where the device has
/// no immediates.
#[derive(Debug)]
pub(crate) struct ControlMemory {
    pub at: *mut u8,
    pub slots: Region,
    pub out: Region,
    pub said: Region,
}

// SAFETY: an address; the pump decides what is written where, under its lock.
unsafe impl Send for ControlMemory {}
// SAFETY: as above.
unsafe impl Sync for ControlMemory {}

const SLOTS_LEN: usize = RECEIVES as usize * CONTROL_LEN;
/// The last is read into, to prove that writes have landed.
const SAID_LEN: usize = (RECEIVES as usize + 1) * size_of::<Said>();
const SMALL_LEN: usize = (2 * SLOTS_LEN + SAID_LEN).next_multiple_of(4096);

impl ControlMemory {
    pub fn new(domain: &Domain) -> Result<Self, Errno> {
        // Shared with children: their copies of pages would take ours from under the device.
        let at = sys::map_zeroes(SMALL_LEN, true)?;
        // SAFETY: mapped above, and unmapped after the regions.
        let registered = unsafe { Self::register(domain, at) };
        if registered.is_err() {
            // SAFETY: nothing else knows it.
            unsafe { sys::unmap(at, SMALL_LEN) };
        }
        registered
    }

    /// # Safety
    /// [`SMALL_LEN`] bytes are mapped at `at`, and stay so.
    unsafe fn register(domain: &Domain, at: *mut u8) -> Result<Self, Errno> {
        // SAFETY: the caller's word; three parts of the mapping.
        unsafe {
            // The peer reads what it has written, to prove that writes before the read have landed.
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
        // SAFETY: inside the mapping.
        unsafe { self.at.add(at) }.cast()
    }

    pub fn out(&self, slot: u16) -> *mut [u8; CONTROL_LEN] {
        // SAFETY: inside the mapping.
        unsafe { self.slot(slot).cast::<u8>().add(SLOTS_LEN) }.cast()
    }

    /// Where reads go, with the key.
    pub(crate) fn sink(&self) -> (*mut u8, u32) {
        let at = 2 * SLOTS_LEN + usize::from(RECEIVES) * size_of::<Said>();
        // SAFETY: inside the mapping.
        (unsafe { self.at.add(at) }, self.said.local_key())
    }

    pub fn said(&self, slot: u64) -> *mut Said {
        let at = 2 * SLOTS_LEN + slot as usize % usize::from(RECEIVES) * size_of::<Said>();
        // SAFETY: inside the mapping, and aligned.
        unsafe { self.at.add(at) }.cast()
    }
}

impl Drop for ControlMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the queue pair is gone, and what is registered stays a region
        // without it.
        unsafe { sys::unmap(self.at, SMALL_LEN) };
    }
}
