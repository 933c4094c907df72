//! Queues of a device: a completion queue with the descriptor that tells of news, and the queue
//! pair of a link.

use super::api::Api;
use super::device::{Device, Domain};
use super::ffi::{
    ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_state, ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode, rdma_cm_id,
};
use super::sigpipe;
use crate::sys::{self, Errno};
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

/// Completions taken in one look.
const BATCH: usize = 16;

/// What the device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The work request marked `mark`, and those of its queue before it, are done.
    Done {
        /// Of [`Post::mark`].
        mark: u64,
    },
    /// A message of the peer's; the receive `slot` is used up.
    Came {
        /// As posted.
        slot: u64,
        /// By the immediate and its completion; without immediates in the slot's buffer.
        said: Option<Said>,
    },
    /// The queue pair works no more: the first of such is what went wrong, others follow it.
    Failed {
        /// `ibv_wc_status`.
        status: u32,
    },
}

/// News, and of which queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its [number](Pair::number).
    pub pair: u32,
    /// The news: those of one queue pair come in order.
    pub news: News,
}

/// What a message says: the immediate and the length of the WRITE, or on iWARP, which has no
/// immediates, the SEND that follows the WRITE. In the byte order of the sender there: both ends
/// have the same, or are no link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The message's word.
    pub word: u32,
    /// Bytes written.
    pub len: u32,
}

/// 10 us, as the device counts.
const RNR_TIMER: u8 = 1;

const SAID_LEN: u32 = size_of::<Said>() as u32;

/// A completion queue, shared by the queue pairs of a device.
#[derive(Debug)]
pub struct Completions {
    api: &'static Api,
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs may be called for one queue by any thread.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// A queue for `len` completions. More than that at once end all its queue pairs.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device, len: u32) -> Result<Self, Errno> {
        let (api, context) = (device.api, device.context.as_ptr());
        // SAFETY: an open context.
        let channel = unsafe { (api.ibv_create_comp_channel)(context) };
        let channel = NonNull::new(channel).ok_or_else(sys::last_errno)?;
        // SAFETY: an open context and its channel.
        let cq = unsafe {
            (api.ibv_create_cq)(context, len as c_int, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let errno = sys::last_errno();
            // SAFETY: made above, without a queue.
            unsafe { (api.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(errno);
        };
        Ok(Self { api, cq, channel })
    }

    /// Completions that it has room for: as many as were asked for, or more.
    #[must_use]
    pub fn room(&self) -> u32 {
        // SAFETY: made in `new`; written by `resize` alone.
        u32::try_from(unsafe { self.cq.as_ref() }.cqe).unwrap_or(0)
    }

    /// Makes room for `len` completions; those that are there stay. While nobody else polls the
    /// queue.
    ///
    /// # Errors
    /// EOPNOTSUPP or ENOSYS: the device cannot; EINVAL beyond its limit; the device's.
    pub fn resize(&self, len: u32) -> Result<(), Errno> {
        // SAFETY: a queue, which nobody polls meanwhile.
        match unsafe { (self.api.ibv_resize_cq)(self.cq.as_ptr(), len as c_int) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Readable after [`arm`](Self::arm) and a completion.
    #[must_use]
    pub fn descriptor(&self) -> c_int {
        // SAFETY: made in `new`.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Puts the descriptor at another number: `copy` makes one of it.
    pub fn rehouse(&self, copy: impl FnOnce(c_int) -> Option<sys::Fd>) {
        // SAFETY: made in `new`; libibverbs uses whatever number stands there.
        unsafe { super::cm::rehouse(&raw mut (*self.channel.as_ptr()).fd, copy) };
    }

    /// By which an event of the device's names it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.cq.as_ptr() as usize
    }

    /// Takes completions, the oldest first, at most as many as there is room for; how many.
    ///
    /// # Errors
    /// The device's; no queue pair of this queue works any more.
    pub fn poll(&self, into: &mut [Told]) -> Result<usize, Errno> {
        // SAFETY: zeroes are a valid value of it.
        let mut wc: [ibv_wc; BATCH] = unsafe { core::mem::zeroed() };
        let most = into.len().min(BATCH) as i32;
        // SAFETY: a queue, and room for as many as are asked for.
        let n = unsafe { ibv_poll_cq(self.cq.as_ptr(), most, wc.as_mut_ptr()) };
        let n = usize::try_from(n).map_err(|_| -n)?;
        for (to, wc) in into.iter_mut().zip(wc.iter().take(n)) {
            *to = Told {
                pair: wc.qp_num,
                news: news(wc),
            };
        }
        Ok(n)
    }

    /// The next completion makes the descriptor readable. One that is there already does not: poll
    /// once more.
    ///
    /// # Errors
    /// The device's.
    pub fn arm(&self) -> Result<(), Errno> {
        // SAFETY: a queue. Not solicited ones alone: some devices never report those, none reports
        // errors as such.
        match unsafe { ibv_req_notify_cq(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Takes one event from the descriptor, waiting for it unless that is non-blocking.
    ///
    /// # Errors
    /// EAGAIN, EINTR, the device's.
    pub fn take_event(&self) -> Result<(), Errno> {
        let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel, and room for the answers.
        let failed = unsafe {
            (self.api.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context)
        };
        if failed != 0 {
            return Err(sys::last_errno());
        }
        // SAFETY: the queue that the event was of.
        unsafe { (self.api.ibv_ack_cq_events)(cq, 1) };
        Ok(())
    }
}

fn news(wc: &ibv_wc) -> News {
    if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
        return News::Failed { status: wc.status };
    }
    if wc.opcode & ibv_wc_opcode::IBV_WC_RECV == 0 {
        return News::Done { mark: wc.wr_id };
    }
    let immediate = wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    News::Came {
        slot: wc.wr_id,
        said: immediate.then(|| Said {
            // SAFETY: a number in either reading.
            word: u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
            len: wc.byte_len,
        }),
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: made in `new`; its queue pairs are gone by the order of fields of the owner of
        // them.
        unsafe {
            (self.api.ibv_destroy_cq)(self.cq.as_ptr());
            (self.api.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// One message to the peer: bytes from registered memory into memory that it has lent, and a word.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Address and length of the bytes, and the region's local key.
    pub from: (*const u8, u32, u32),
    /// Where they go in the peer's memory, and its remote key.
    pub to: (u64, u32),
    /// What the peer gets to read with them.
    pub word: u32,
    /// Comes back in [`News::Done`], if that is asked for.
    pub mark: Option<u64>,
    /// The device must read the bytes, however few: a processor that did could get SIGBUS.
    pub by_device: bool,
}

/// Eight bytes to be read.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// Room for them, and its local key.
    pub into: (*mut u8, u32),
    /// Where they are at the peer's, and its remote key.
    pub from: (u64, u32),
}

/// The queue pair of a link, made by RDMA CM.
#[derive(Debug)]
pub struct Pair {
    api: &'static Api,
    qp: NonNull<ibv_qp>,
    /// Bytes that a post may carry itself.
    inline: u32,
    immediate: bool,
    signals: bool,
}

// SAFETY: libibverbs may be called for one queue pair by any thread.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Work requests of ours at once. Without immediates each message takes two.
    pub sends: u32,
    /// Receives posted at once.
    pub receives: u32,
    /// Bytes that small messages should carry themselves.
    pub inline: u32,
}

impl Pair {
    /// Makes the queue pair of an id of RDMA CM.
    ///
    /// # Safety
    /// `id` is one, resolved or asked for, without a queue pair; it lives as long as this.
    ///
    /// # Errors
    /// The device's; EINVAL where the shape is beyond its limits.
    pub(super) unsafe fn new(
        id: NonNull<rdma_cm_id>,
        domain: &Domain,
        completions: &Completions,
        shape: Shape,
    ) -> Result<Self, Errno> {
        let api = domain.device.api;
        // SAFETY: zeroes are a valid value of it.
        let mut attr: super::ffi::ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        attr.qp_type = super::ffi::ibv_qp_type::IBV_QPT_RC;
        attr.send_cq = completions.cq.as_ptr();
        attr.recv_cq = completions.cq.as_ptr();
        attr.cap.max_send_wr = shape.sends;
        attr.cap.max_recv_wr = shape.receives;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = shape.inline;
        // SAFETY: the caller's id, a domain and queues of its device.
        let failed =
            unsafe { (api.rdma_create_qp)(id.as_ptr(), domain.pd.as_ptr(), &raw mut attr) };
        if failed != 0 {
            return Err(sys::last_errno());
        }
        // SAFETY: rdma_create_qp has set it.
        let qp = NonNull::new(unsafe { (*id.as_ptr()).qp }).ok_or(libc::EINVAL)?;
        Ok(Self {
            api,
            qp,
            // Some devices give more than was asked for, and say so here.
            inline: attr.cap.max_inline_data,
            immediate: domain.device.limits.immediate,
            signals: domain.device.limits.signals,
        })
    }

    /// By which completions name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: lives as long as the id.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Gives messages to the device, in order, with one ring of its doorbell.
    ///
    /// # Safety
    /// The bytes stay as they are until a completion tells that the device is through with them.
    ///
    /// # Errors
    /// ENOMEM: the queue is full, which the caller's count prevents; the device's.
    pub unsafe fn post(&self, messages: &[Post]) -> Result<(), Errno> {
        // SAFETY: zeroes are a valid value of both.
        let mut requests: [ibv_send_wr; 2 * BATCH] = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let mut pieces: [ibv_sge; 2 * BATCH] = unsafe { core::mem::zeroed() };
        let mut words = [Said::default(); BATCH];
        for chunk in messages.chunks(BATCH) {
            let mut used = 0;
            for (message, said) in chunk.iter().zip(&mut words) {
                used = self.describe(message, said, &mut requests, &mut pieces, used);
            }
            let base = requests.as_mut_ptr();
            for i in 1..used {
                // SAFETY: inside the array.
                unsafe { (*base.add(i - 1)).next = base.add(i) };
            }
            if let Some(last) = requests.get_mut(used.wrapping_sub(1)) {
                last.next = ptr::null_mut();
            }
            let mut bad = ptr::null_mut();
            // SAFETY: a chain of requests of this queue pair's, each with its pieces.
            let post = || unsafe { ibv_post_send(self.qp.as_ptr(), base, &raw mut bad) };
            match self.quietly(post) {
                0 => {}
                errno => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives the device a read of the peer's memory, which completes after all that was posted
    /// before has landed there. `mark` comes back in [`News::Done`].
    ///
    /// # Safety
    /// There is room of 8 bytes in registered memory until the read is complete.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub unsafe fn read(&self, proof: &Proof, mark: u64) -> Result<(), Errno> {
        let Proof { into, from } = *proof;
        let mut piece = ibv_sge {
            addr: into.0 as u64,
            length: 8,
            lkey: into.1,
        };
        // SAFETY: zeroes are a valid value of it.
        let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
        request.wr_id = mark;
        request.sg_list = &raw mut piece;
        request.num_sge = 1;
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED;
        request.wr.rdma.remote_addr = from.0;
        request.wr.rdma.rkey = from.1;
        let mut bad = ptr::null_mut();
        // SAFETY: a request of this queue pair's, with its piece.
        let post = || unsafe { ibv_post_send(self.qp.as_ptr(), &raw mut request, &raw mut bad) };
        match self.quietly(post) {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Writes the requests of one message after the `used` first; how many there are then.
    fn describe(
        &self,
        message: &Post,
        said: &mut Said,
        requests: &mut [ibv_send_wr],
        pieces: &mut [ibv_sge],
        used: usize,
    ) -> usize {
        let (at, len, key) = message.from;
        let signal = if message.mark.is_some() {
            ibv_send_flags::IBV_SEND_SIGNALED
        } else {
            0
        };
        let mut used = used;
        let mut request = |opcode, addr: *const u8, len: u32, key: u32, flags: u32| {
            let (Some(request), Some(piece)) = (requests.get_mut(used), pieces.get_mut(used))
            else {
                return;
            };
            *piece = ibv_sge {
                addr: addr as u64,
                length: len,
                lkey: key,
            };
            request.wr_id = message.mark.unwrap_or(0);
            request.sg_list = piece;
            request.num_sge = i32::from(len > 0);
            request.opcode = opcode;
            request.send_flags = flags;
            request.__bindgen_anon_1.imm_data = message.word.to_be();
            request.wr.rdma.remote_addr = message.to.0;
            request.wr.rdma.rkey = message.to.1;
            used += 1;
        };
        let inline = if len <= self.inline && len > 0 && !message.by_device {
            ibv_send_flags::IBV_SEND_INLINE
        } else {
            0
        };
        if self.immediate {
            request(
                ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                at,
                len,
                key,
                inline | signal,
            );
        } else {
            *said = Said {
                word: message.word,
                len,
            };
            if len > 0 {
                request(ibv_wr_opcode::IBV_WR_RDMA_WRITE, at, len, key, inline);
            }
            let at = ptr::from_ref(said).cast();
            request(
                ibv_wr_opcode::IBV_WR_SEND,
                at,
                SAID_LEN,
                0,
                ibv_send_flags::IBV_SEND_INLINE | signal,
            );
        }
        used
    }

    /// Posts the receive `slot`: for an immediate, or for a SEND of [`Said`] into registered
    /// memory.
    ///
    /// # Safety
    /// The buffer lives until it is used up, and is written by the device.
    ///
    /// # Errors
    /// ENOMEM: the queue is full; the device's.
    pub unsafe fn receive(&self, slot: u64, into: Option<(*mut Said, u32)>) -> Result<(), Errno> {
        let (addr, lkey) = into.unwrap_or((ptr::null_mut(), 0));
        let mut piece = ibv_sge {
            addr: addr as u64,
            length: SAID_LEN,
            lkey,
        };
        // SAFETY: zeroes are a valid value of it.
        let mut request: ibv_recv_wr = unsafe { core::mem::zeroed() };
        request.wr_id = slot;
        if into.is_some() {
            request.sg_list = &raw mut piece;
            request.num_sge = 1;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a request of this queue pair's.
        match unsafe { ibv_post_recv(self.qp.as_ptr(), &raw mut request, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// A peer that finds no receive posted tries again soon. Where the connection manager says
    /// nothing of it, that is 655 ms.
    pub fn be_ready_soon(&self) {
        // SAFETY: zeroes are a valid value of it.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.min_rnr_timer = RNR_TIMER;
        let what = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER as c_int;
        // SAFETY: a queue pair. A device that refuses keeps its own.
        unsafe { (self.api.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attr, what) };
    }

    /// Ends the work of the queue pair, for good: nothing that is not completed by now counts.
    pub fn fail(&self) {
        // SAFETY: zeroes are a valid value of it.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let what = ibv_qp_attr_mask::IBV_QP_STATE as c_int;
        // SAFETY: a queue pair. That it is in error already is no news.
        self.quietly(|| unsafe { (self.api.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attr, what) });
    }

    /// Does what may have the driver send.
    fn quietly<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.signals {
            sigpipe::without(f)
        } else {
            f()
        }
    }
}
