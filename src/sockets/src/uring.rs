//! io_uring by `syscall()`: reads what a program asks a ring for before the kernel takes it.
//!
//! The first operation of a ring on a socket takes the socket back to TCP for good, as any other
//! use past the hooks does. An entry that changes an epoll set (libuv makes them, in batches) is
//! served like the call: the hook makes it, and leaves an entry that does nothing in its place.
//!
//! For that the ring's memory is mapped here too: the pages that the program and the kernel share
//! (io_uring(7)). A mapping keeps the ring alive, so this one goes with the program's descriptor,
//! and no child inherits it.

use crate::options;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::{process, rights};
use sluice_stats::Reason;

/// `struct io_uring_params` (linux/io_uring.h), as filled by the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq: SqOffsets,
    cq: [u32; 10],
}

impl Params {
    /// Returns whether `io_uring_setup` returned a descriptor, not an index of registered rings
    /// (IORING_SETUP_REGISTERED_FD_ONLY).
    #[must_use]
    pub const fn makes_descriptor(&self) -> bool {
        self.flags & 0x8000 == 0
    }
}

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: [u32; 2],
}

const _: () = assert!(size_of::<Params>() == 120);

/// `struct io_uring_sqe`: what one entry asks for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sqe {
    /// `IORING_OP_*`.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// Priority, or flags of the operation's own.
    pub ioprio: u16,
    /// The descriptor.
    pub fd: i32,
    /// An offset, or a second address.
    pub off: u64,
    /// An address.
    pub addr: u64,
    /// Its length, or another number.
    pub len: u32,
    /// Flags of the operation.
    pub op_flags: u32,
    /// Comes back with the result.
    pub user_data: u64,
    /// Buffer and credentials.
    pub buf: [u16; 2],
    /// The second descriptor of a splice.
    pub splice_fd_in: i32,
    /// What newer operations take.
    pub more: [u64; 2],
}

const _: () = assert!(size_of::<Sqe>() == 64);

/// Setup flags under which entries lie where this module looks for them: IOPOLL, CQSIZE, CLAMP,
/// ATTACH_WQ, R_DISABLED, SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, SQE128, CQE32, SINGLE_ISSUER,
/// DEFER_TASKRUN, NO_SQARRAY, HYBRID_IOPOLL. Not SQPOLL, by which the kernel takes entries without
/// a call; not memory of the program's; not a ring without a descriptor.
const KNOWN: u32 = 1
    | 0x8
    | 0x10
    | 0x20
    | 0x40
    | 0x80
    | 0x100
    | 0x200
    | SQE128
    | 0x800
    | 0x1000
    | 0x2000
    | NO_SQARRAY
    | 0x2_0000;
const SQE128: u32 = 0x400;
const NO_SQARRAY: u32 = 0x1_0000;
/// The offsets at which parts of a ring are mapped: IORING_OFF_SQ_RING, IORING_OFF_SQES.
const AT_SQ: usize = 0;
const AT_SQES: usize = 0x1000_0000;

/// Most rings of one process that are read; with more the process stays on TCP.
const RINGS: usize = 64;

/// A ring. The fields except `owner` change only while that is [`TAKEN`].
struct Ring {
    /// 1 + the descriptor.
    owner: AtomicI32,
    /// The part with heads, tails and the array, and its length.
    sq: AtomicPtr<u8>,
    sq_len: AtomicUsize,
    sqes: AtomicPtr<u8>,
    sqes_len: AtomicUsize,
    /// Offsets into `sq`; 0 for `array`: the ring has none.
    head: AtomicU32,
    tail: AtomicU32,
    array: AtomicU32,
    /// Number of entries, a power of two, and bytes of one.
    len: AtomicU32,
    stride: AtomicU32,
}

const FREE: i32 = 0;
const TAKEN: i32 = -1;

static ALL: [Ring; RINGS] = [const {
    Ring {
        owner: AtomicI32::new(FREE),
        sq: AtomicPtr::new(core::ptr::null_mut()),
        sq_len: AtomicUsize::new(0),
        sqes: AtomicPtr::new(core::ptr::null_mut()),
        sqes_len: AtomicUsize::new(0),
        head: AtomicU32::new(0),
        tail: AtomicU32::new(0),
        array: AtomicU32::new(0),
        len: AtomicU32::new(0),
        stride: AtomicU32::new(0),
    }
}; RINGS];

/// `io_uring_setup` has made `fd`. If the ring cannot be read here, the process stays on TCP.
pub fn made(fd: c_int, params: &Params) {
    if process::is_vfork_child() {
        return;
    }
    options::may_be_set_unseen();
    if try_made(fd, params).is_none() {
        not_seen();
    }
}

/// A ring is in use that cannot be read here: the process stays on TCP from now on.
pub fn not_seen() {
    rights::sandbox(Reason::IoUring);
}

fn try_made(fd: c_int, params: &Params) -> Option<()> {
    if params.flags & !KNOWN != 0 || !params.sq_entries.is_power_of_two() {
        return None;
    }
    let ring = ALL.iter().find(|ring| {
        ring.owner
            .compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    let free = || {
        ring.owner.store(FREE, Ordering::Release);
        None
    };
    let entries = params.sq_entries as usize;
    let stride = if params.flags & SQE128 != 0 { 128 } else { 64 };
    let has_array = params.flags & NO_SQARRAY == 0;
    let words = [params.sq.head, params.sq.tail].map(|at| at as usize + 4);
    let array_end = params.sq.array as usize + 4 * entries;
    let sq_len = words[0]
        .max(words[1])
        .max(if has_array { array_end } else { 0 });
    let Ok(sq) = sys::map_part(fd, sq_len, AT_SQ) else {
        return free();
    };
    let Ok(sqes) = sys::map_part(fd, entries * stride, AT_SQES) else {
        // SAFETY: just mapped with this length.
        unsafe { sys::unmap(sq, sq_len) };
        return free();
    };
    // SAFETY: both were just mapped with these lengths; a child does not need them.
    let kept = unsafe {
        sys::madvise(sq, sq_len, libc::MADV_DONTFORK).is_ok()
            && sys::madvise(sqes, entries * stride, libc::MADV_DONTFORK).is_ok()
    };
    ring.sq.store(sq, Ordering::Relaxed);
    ring.sq_len.store(sq_len, Ordering::Relaxed);
    ring.sqes.store(sqes, Ordering::Relaxed);
    ring.sqes_len.store(entries * stride, Ordering::Relaxed);
    ring.head.store(params.sq.head, Ordering::Relaxed);
    ring.tail.store(params.sq.tail, Ordering::Relaxed);
    let array = if has_array { params.sq.array } else { 0 };
    ring.array.store(array, Ordering::Relaxed);
    ring.len.store(params.sq_entries, Ordering::Relaxed);
    ring.stride.store(stride as u32, Ordering::Relaxed);
    if !kept || !fd_table::store(fd, Entry::RING) {
        ring.unmap();
        return free();
    }
    ring.owner.store(fd + 1, Ordering::Release);
    Some(())
}

impl Ring {
    fn unmap(&self) {
        for (at, len) in [(&self.sq, &self.sq_len), (&self.sqes, &self.sqes_len)] {
            // SAFETY: mapped by `try_made` with this length. The caller has set `owner` to TAKEN,
            // so no thread reads the ring.
            unsafe { sys::unmap(at.load(Ordering::Relaxed), len.load(Ordering::Relaxed)) };
        }
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        // SAFETY: inside the mapping that `try_made` made, aligned by the kernel's layout, and
        // accessed by atomics only.
        unsafe { &*self.sq.load(Ordering::Relaxed).add(at as usize).cast() }
    }
}

/// The descriptor of a ring is about to be closed, or was closed without a hook.
pub fn closed(fd: c_int) {
    let mine = |ring: &&Ring| {
        ring.owner
            .compare_exchange(fd + 1, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    if let Some(ring) = ALL.iter().find(mine) {
        ring.unmap();
        ring.owner.store(FREE, Ordering::Release);
    }
}

/// In the child of a fork: it has the rings' descriptors, but does not read the rings.
pub fn after_fork() {
    for ring in &ALL {
        let owner = ring.owner.swap(FREE, Ordering::Relaxed);
        if owner > 0 {
            fd_table::remove_if(owner - 1, Entry::RING);
        }
    }
}

/// The entries of ring `fd` that the kernel is about to take, at most `most`. `None`: the ring is
/// not read here.
///
/// The entries are the program's memory: the program must not change them before the kernel has
/// taken them, nor submit others meanwhile.
pub fn entries(fd: c_int, most: u32) -> Option<impl Iterator<Item = *mut Sqe>> {
    if fd_table::lookup(fd) != Some(Entry::RING) {
        return None;
    }
    let ring = ALL
        .iter()
        .find(|ring| ring.owner.load(Ordering::Acquire) == fd + 1)?;
    let len = ring.len.load(Ordering::Relaxed);
    let stride = ring.stride.load(Ordering::Relaxed);
    let array = ring.array.load(Ordering::Relaxed);
    let head = ring
        .word(ring.head.load(Ordering::Relaxed))
        .load(Ordering::Acquire);
    let tail = ring
        .word(ring.tail.load(Ordering::Relaxed))
        .load(Ordering::Acquire);
    let count = tail.wrapping_sub(head).min(most).min(len);
    Some((0..count).filter_map(move |i| {
        let slot = head.wrapping_add(i) & (len - 1);
        let index = if array == 0 {
            slot
        } else {
            ring.word(array + 4 * slot).load(Ordering::Relaxed)
        };
        // The kernel drops an index that is out of range.
        (index < len).then(|| {
            // SAFETY: `index` is below the number of entries, which are mapped with this stride.
            unsafe {
                ring.sqes
                    .load(Ordering::Relaxed)
                    .add((index * stride) as usize)
            }
            .cast()
        })
    }))
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests make real rings")]
mod tests {
    use super::*;

    fn setup(flags: u32) -> Option<(c_int, Params)> {
        // SAFETY: zeroes are valid settings.
        let mut params: Params = unsafe { core::mem::zeroed() };
        params.flags = flags;
        // SAFETY: `params` is as long as the kernel wants it.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &raw mut params) };
        // Fails on a kernel without io_uring, or where it is forbidden.
        (fd >= 0).then_some((fd as c_int, params))
    }

    #[test]
    fn what_a_ring_asks_for_is_read_where_the_kernel_reads_it() {
        for flags in [0, SQE128] {
            let Some((fd, params)) = setup(flags) else {
                return;
            };
            made(fd, &params);
            assert_eq!(entries(fd, 8).unwrap().count(), 0);
            let ring = ALL
                .iter()
                .find(|r| r.owner.load(Ordering::Relaxed) == fd + 1)
                .unwrap();
            // As a program does it; the array's slot and the entry have different indices.
            let sqe = Sqe {
                opcode: 0,
                user_data: 77,
                ..
                // SAFETY: zeroes are a valid entry.
                unsafe { core::mem::zeroed() }
            };
            let stride = ring.stride.load(Ordering::Relaxed) as usize;
            // SAFETY: the sixth of eight entries.
            unsafe {
                ring.sqes
                    .load(Ordering::Relaxed)
                    .add(5 * stride)
                    .cast::<Sqe>()
                    .write(sqe)
            };
            let array = ring.array.load(Ordering::Relaxed);
            ring.word(array).store(5, Ordering::Relaxed);
            let tail = ring.word(ring.tail.load(Ordering::Relaxed));
            tail.store(1, Ordering::Release);
            let asked: Vec<_> = entries(fd, 8).unwrap().collect();
            assert_eq!(asked.len(), 1);
            // SAFETY: mapped, and nobody changes it.
            assert_eq!(unsafe { (*asked[0]).user_data }, 77);
            assert_eq!(entries(fd, 0).unwrap().count(), 0);
            // SAFETY: the kernel gets no address of ours.
            let took =
                unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, 1, 0, 0, 0usize, 0usize) };
            assert_eq!(took, 1);
            assert_eq!(
                entries(fd, 8).unwrap().count(),
                0,
                "the kernel has taken it"
            );
            let entry = fd_table::remove(fd);
            assert_eq!(entry, Some(Entry::RING));
            closed(fd);
            assert!(entries(fd, 8).is_none());
            sys::close(fd).unwrap();
        }
    }

    #[test]
    fn a_ring_that_the_kernel_reads_by_itself_is_not_looked_into() {
        const SQPOLL: u32 = 2;
        // SAFETY: zeroes are valid settings.
        let mut params: Params = unsafe { core::mem::zeroed() };
        (params.flags, params.sq_entries) = (SQPOLL, 8);
        assert!(try_made(1, &params).is_none());
    }
}
