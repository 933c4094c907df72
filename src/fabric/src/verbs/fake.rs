//! A device in memory, for tests: the functions of libibverbs and librdmacm, between queue pairs of
//! one process, with faults drawn from a seed.
//!
//! It promises no more than a device does. The messages of a queue pair land in order, and a
//! completion tells only of messages that have landed. The bytes of a send are read when it is
//! sent, not when it is posted. A key opens its own region alone, for the access that it was
//! registered with. A connection that breaks has written any part of the message under way, and the
//! sender may not hear of the messages that landed last.
//!
//! Nothing runs by itself. A message arrives when either end polls or posts; a late one does so at
//! a later call. All arrive when a queue is armed, so that a sleeper hears of them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests alone have this module: what is not as it must be ends them"
)]

use super::api::Api;
use super::cm::Id;
use super::ffi::{
    ibv_access_flags as access, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_transport_type, ibv_wc, ibv_wc_opcode, ibv_wc_status as status, ibv_wr_opcode,
    rdma_cm_id,
};
use crate::sys;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::{self, NonNull};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Which rules the devices of both ends keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WRITE carries an immediate, and a region may begin at any number (IOVA).
    InfiniBand,
    /// A SEND follows each WRITE, and a region begins at its address.
    Iwarp,
}

/// What goes wrong on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// If not 0, messages and completions are late, by draws from this seed.
    pub seed: u64,
    /// The connection breaks in the message that follows so many.
    pub breaks_after: Option<u64>,
}

/// Both ends of a connection, each on a device of its own and without a queue pair, as the
/// connection manager would give them.
#[must_use]
pub fn connection(kind: Kind, faults: Faults) -> [Id; 2] {
    let mut state = state();
    state.connections.push(Connection {
        faults,
        drawn: faults.seed,
        sent: 0,
        ends: [None; 2],
        broken: false,
    });
    let number = state.connections.len() - 1;
    drop(state);
    [0, 1].map(|side| {
        // SAFETY: zeroes are a valid `rdma_cm_id`.
        let mut id: rdma_cm_id = unsafe { zeroed() };
        id.verbs = DEVICES[2 * usize::from(kind == Kind::Iwarp) + side].0;
        id.port_num = 1;
        let end = Box::leak(Box::new(End { id, number, side }));
        let id = NonNull::from(end).cast();
        Id { api: &API, id }
    })
}

/// One end. The library has the address of its first field.
#[repr(C)]
struct End {
    id: rdma_cm_id,
    number: usize,
    side: usize,
}

#[repr(C)]
struct Channel {
    channel: ibv_comp_channel,
    cq: *mut ibv_cq,
}

#[derive(Debug)]
struct Connection {
    faults: Faults,
    drawn: u64,
    sent: u64,
    ends: [Option<u32>; 2],
    broken: bool,
}

impl Connection {
    /// Draws a number below `n`.
    fn draw(&mut self, n: u64) -> u64 {
        let mut drawn = self.drawn | 1;
        drawn ^= drawn << 13;
        drawn ^= drawn >> 7;
        drawn ^= drawn << 17;
        self.drawn = drawn;
        (drawn >> 11) % n
    }

    fn is_late(&mut self) -> bool {
        self.faults.seed != 0 && self.draw(3) == 0
    }
}

/// A send that was posted and has not arrived.
#[derive(Debug)]
struct Flight {
    id: u64,
    opcode: u32,
    word: u32,
    signaled: bool,
    /// The bytes, if the work request has IBV_SEND_INLINE.
    inline: Option<Vec<u8>>,
    piece: Piece,
    to: (u64, u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    at: u64,
    len: usize,
    key: u32,
}

impl From<ibv_sge> for Piece {
    fn from(sge: ibv_sge) -> Self {
        Self {
            at: sge.addr,
            len: sge.length as usize,
            key: sge.lkey,
        }
    }
}

#[derive(Debug)]
struct Pair {
    pd: usize,
    cq: usize,
    connection: usize,
    side: usize,
    flights: VecDeque<Flight>,
    /// Sends that have arrived and whose completion is not told: number, whether signaled, status.
    landed: VecDeque<(u64, bool, u32)>,
    receives: VecDeque<(u64, Piece)>,
    /// Sends that take room in the send queue, which has `room`. The next completion frees `heard`
    /// of them.
    sends: u32,
    room: u32,
    heard: u32,
    failed: bool,
}

struct Queue {
    fd: *const c_int,
    len: usize,
    done: VecDeque<(ibv_wc, u32)>,
    armed: bool,
}

struct Region {
    pd: usize,
    at: u64,
    len: usize,
    first: u64,
    rights: u32,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    pairs: BTreeMap<u32, Pair>,
    queues: BTreeMap<usize, Queue>,
    regions: BTreeMap<u32, Region>,
    last: u32,
}

// SAFETY: the addresses in it are used under the lock of `STATE` alone, and belong to structures
// that the library destroys only after it has taken them out.
unsafe impl Send for State {}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap()
}

impl State {
    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The memory that a key opens: within its region, of the same domain, and with these rights.
    fn memory(&self, pd: usize, key: u32, at: u64, len: usize, rights: u32) -> Option<*mut u8> {
        let region = self.regions.get(&key)?;
        let from = at.checked_sub(region.first)?;
        let fits = from.checked_add(len as u64)? <= region.len as u64;
        (fits && region.pd == pd && region.rights & rights == rights)
            .then(|| ptr::with_exposed_provenance_mut((region.at + from) as usize))
    }

    fn peer(&self, pair: &Pair) -> Option<u32> {
        self.connections[pair.connection].ends[1 - pair.side]
    }

    /// Adds a completion of the queue pair's, which frees the room of `frees` sends.
    fn complete(&mut self, number: u32, mut wc: ibv_wc, frees: u32) {
        wc.qp_num = number;
        let Some(queue) = self.queues.get_mut(&self.pairs[&number].cq) else {
            return;
        };
        queue.done.push_back((wc, frees));
        assert!(queue.done.len() <= queue.len, "the queue has overrun");
        if core::mem::take(&mut queue.armed) {
            // SAFETY: `fd` points to the descriptor of the queue's channel, which outlives the
            // queue; `ONE` has eight bytes.
            unsafe { libc::write(*queue.fd, ptr::from_ref(&ONE).cast(), 8) };
        }
    }

    /// Tells of a send: by a completion of its own if it is signaled or has failed.
    fn tell(&mut self, number: u32, id: u64, signaled: bool, status: u32) {
        self.pairs.get_mut(&number).unwrap().heard += 1;
        if signaled || status != status::IBV_WC_SUCCESS {
            let frees = core::mem::take(&mut self.pairs.get_mut(&number).unwrap().heard);
            self.complete(
                number,
                completion(id, ibv_wc_opcode::IBV_WC_SEND, status),
                frees,
            );
        }
    }

    /// Puts the queue pair into error. The first send that is not told of yet fails with `why`; all
    /// others, and the receives, are flushed.
    fn fail(&mut self, number: u32, why: u32) {
        let pair = self.pairs.get_mut(&number).unwrap();
        if core::mem::replace(&mut pair.failed, true) {
            return;
        }
        let landed = core::mem::take(&mut pair.landed);
        let flights = core::mem::take(&mut pair.flights);
        let receives = core::mem::take(&mut pair.receives);
        let sends = landed.into_iter().map(|(id, ..)| id);
        let mut why = why;
        for id in sends.chain(flights.into_iter().map(|flight| flight.id)) {
            self.tell(number, id, true, why);
            why = status::IBV_WC_WR_FLUSH_ERR;
        }
        for (id, _) in receives {
            let wc = completion(id, ibv_wc_opcode::IBV_WC_RECV, status::IBV_WC_WR_FLUSH_ERR);
            self.complete(number, wc, 0);
        }
    }

    /// Has the oldest message of the queue pair arrive. Returns false if there is none, or if it
    /// cannot.
    fn arrive(&mut self, number: u32) -> bool {
        let pair = &self.pairs[&number];
        let Some(flight) = pair.flights.front() else {
            return false;
        };
        let connection = &self.connections[pair.connection];
        if connection.broken {
            self.fail(number, status::IBV_WC_RETRY_EXC_ERR);
            return false;
        }
        let Some(to) = self.peer(pair) else {
            return false;
        };
        let takes = matches!(
            flight.opcode,
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        );
        if takes && self.pairs[&to].receives.is_empty() {
            return false;
        }
        let breaks = connection.faults.breaks_after == Some(connection.sent);
        let at = pair.connection;
        self.connections[at].sent += 1;
        let sent = self.land(number, to, takes, breaks);
        if breaks {
            self.connections[at].broken = true;
            self.fail(number, status::IBV_WC_RETRY_EXC_ERR);
            return false;
        }
        if let Err(why) = sent {
            self.fail(number, why);
            self.fail(to, status::IBV_WC_WR_FLUSH_ERR);
            return false;
        }
        true
    }

    /// Moves the bytes of the oldest message, or only the first of them if the connection `breaks`.
    fn land(&mut self, number: u32, to: u32, takes: bool, breaks: bool) -> Result<(), u32> {
        let pair = &self.pairs[&number];
        let flight = &pair.flights[0];
        let (pd, peer_pd) = (pair.pd, self.pairs[&to].pd);
        let len = flight.inline.as_ref().map_or(flight.piece.len, Vec::len);
        let (opcode, word, id, signaled) = (flight.opcode, flight.word, flight.id, flight.signaled);
        let reads = opcode == ibv_wr_opcode::IBV_WR_RDMA_READ;
        let own = |rights| self.memory(pd, flight.piece.key, flight.piece.at, len, rights);
        let here = match &flight.inline {
            Some(bytes) => bytes.as_ptr().cast_mut(),
            None if len == 0 => ptr::null_mut(),
            None if reads => own(access::IBV_ACCESS_LOCAL_WRITE).ok_or(LOCAL)?,
            None => own(0).ok_or(LOCAL)?,
        };
        let receive = self.pairs[&to].receives.front().copied();
        let there = match receive.filter(|_| opcode == ibv_wr_opcode::IBV_WR_SEND) {
            Some((_, into)) => {
                assert!(len <= into.len, "a message longer than its receive");
                let rights = access::IBV_ACCESS_LOCAL_WRITE;
                self.memory(peer_pd, into.key, into.at, len, rights)
            }
            None => {
                let rights = if reads {
                    access::IBV_ACCESS_REMOTE_READ
                } else {
                    access::IBV_ACCESS_REMOTE_WRITE
                };
                let (at, key) = flight.to;
                // A message without bytes names no region.
                if len == 0 {
                    Some(ptr::null_mut())
                } else {
                    self.memory(peer_pd, key, at, len, rights)
                }
            }
        };
        let there = there.ok_or(status::IBV_WC_REM_ACCESS_ERR)?;
        let moved = if breaks {
            let at = pair.connection;
            self.connections[at].draw(len as u64 + 1) as usize
        } else {
            len
        };
        let (from, into) = if reads { (there, here) } else { (here, there) };
        if moved != 0 {
            // SAFETY: `from` and `into` are inline bytes, or memory that `State::memory` has found
            // in a region with room for `len`; the library keeps registered memory mapped.
            unsafe { ptr::copy(from, into, moved) };
        }
        if breaks {
            return Ok(());
        }
        if let Some((slot, _)) = receive.filter(|_| takes) {
            self.pairs.get_mut(&to).unwrap().receives.pop_front();
            let with_word = opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            let kind = if with_word {
                ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
            } else {
                ibv_wc_opcode::IBV_WC_RECV
            };
            let mut wc = completion(slot, kind, status::IBV_WC_SUCCESS);
            wc.byte_len = len as u32;
            wc.__bindgen_anon_1.imm_data = word;
            self.complete(to, wc, 0);
        }
        let pair = self.pairs.get_mut(&number).unwrap();
        pair.flights.pop_front();
        pair.landed
            .push_back((id, signaled, status::IBV_WC_SUCCESS));
        Ok(())
    }

    /// Has messages from and to the queue's queue pairs arrive: `all` of them, or those that are
    /// not late.
    fn advance(&mut self, cq: usize, all: bool) {
        let concerns = |pair: &Pair| {
            let peer = self.peer(pair).and_then(|number| self.pairs.get(&number));
            pair.cq == cq || peer.is_some_and(|peer| peer.cq == cq)
        };
        let pairs = self.pairs.iter().filter(|(_, pair)| concerns(pair));
        let numbers: Vec<u32> = pairs.map(|(number, _)| *number).collect();
        for number in numbers {
            self.advance_pair(number, all);
        }
    }

    fn advance_pair(&mut self, number: u32, all: bool) {
        let at = self.pairs[&number].connection;
        while (all || !self.connections[at].is_late()) && self.arrive(number) {}
        while all || !self.connections[at].is_late() {
            let landed = &mut self.pairs.get_mut(&number).unwrap().landed;
            let Some((id, signaled, status)) = landed.pop_front() else {
                return;
            };
            self.tell(number, id, signaled, status);
        }
    }

    fn is_armed(&self, number: u32) -> bool {
        let armed = |pair: &Pair| self.queues.get(&pair.cq).is_some_and(|queue| queue.armed);
        let pair = &self.pairs[&number];
        let peer = self.peer(pair).and_then(|number| self.pairs.get(&number));
        armed(pair) || peer.is_some_and(armed)
    }
}

const ONE: u64 = 1;
const LOCAL: u32 = status::IBV_WC_LOC_PROT_ERR;

fn completion(id: u64, opcode: u32, status: u32) -> ibv_wc {
    // SAFETY: zeroes are a valid `ibv_wc`.
    let mut wc: ibv_wc = unsafe { zeroed() };
    (wc.wr_id, wc.opcode, wc.status) = (id, opcode, status);
    wc
}

/// Makes a structure that the library gets, and gives back to be destroyed ([`end`]).
fn new<T>(made: T) -> *mut T {
    Box::into_raw(Box::new(made))
}

/// # Safety
/// `made` comes from [`new`], and nobody uses it any more.
unsafe fn end<T>(made: *mut T) -> c_int {
    // SAFETY: `made` comes from `new`, by `Box::into_raw`, and is used no more, as this function
    // demands.
    drop(unsafe { Box::from_raw(made) });
    0
}

struct Context(*mut ibv_context);

// SAFETY: after it was made only its descriptors are written, by `Device::rehouse`, while nothing
// else is done to the device.
unsafe impl Send for Context {}
// SAFETY: threads that share it only read it, but for `Device::rehouse`, as `Send` says.
unsafe impl Sync for Context {}

/// Two devices of each kind.
static DEVICES: LazyLock<[Context; 4]> = LazyLock::new(|| {
    [0, 1, 2, 3].map(|number| {
        // SAFETY: zeroes are a valid `ibv_device` and a valid `ibv_context`.
        let (mut device, mut context): (ibv_device, ibv_context) = unsafe { (zeroed(), zeroed()) };
        device.transport_type = if number < 2 {
            ibv_transport_type::IBV_TRANSPORT_IB
        } else {
            ibv_transport_type::IBV_TRANSPORT_IWARP
        };
        device.name[..5].copy_from_slice(&[b'f', b'a', b'k', b'e', b'0' + number].map(|b| b as _));
        context.device = new(device);
        context.ops.poll_cq = Some(poll_cq);
        context.ops.req_notify_cq = Some(req_notify_cq);
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        let descriptor = || sys::eventfd(libc::EFD_NONBLOCK).unwrap().release();
        (context.cmd_fd, context.async_fd) = (descriptor(), descriptor());
        Context(new(context))
    })
});

static API: LazyLock<Api> = LazyLock::new(|| Api {
    ibv_query_device: query_device,
    ibv_query_port: query_port,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_reg_mr_iova: Some(reg_mr_iova),
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_comp_channel,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_create_cq: create_cq,
    ibv_resize_cq: resize_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_modify_qp: modify_qp,
    ibv_get_async_event: get_async_event,
    rdma_destroy_id: destroy_id,
    rdma_create_qp: create_qp,
    rdma_destroy_qp: destroy_qp,
    rdma_disconnect: disconnect,
    ..Api::absent()
});

// Each function below does what the manual page of its name says. Its caller, the library, keeps
// what that page demands: pointers are valid, and nothing is used after it was destroyed.

unsafe extern "C" fn query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: `into` has room for the answer, of which zeroes are a valid value, and `context` is
    // one of `DEVICES`, as the library has no other.
    let (attr, device) = unsafe {
        into.write(zeroed());
        (&mut *into, &*(*context).device)
    };
    (attr.max_qp_wr, attr.max_cqe) = (4096, 1 << 16);
    if device.transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP {
        // Soft-iWARP is the only kind of device whose work requests name addresses alone.
        attr.vendor_id = super::device::SOFT_IWARP;
    }
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, into: *mut ibv_port_attr) -> c_int {
    // SAFETY: the library gives `into` with room for the answer; its other fields stay as they are.
    unsafe { (*into).state = ibv_port_state::IBV_PORT_ACTIVE };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    new(ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: `pd` comes from `alloc_pd`, and the library gives it back once.
    unsafe { end(pd) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    at: *mut c_void,
    len: usize,
    rights: c_int,
) -> *mut ibv_mr {
    // SAFETY: these are the library's own arguments; the region begins at its address.
    unsafe { reg_mr_iova(pd, at, len, at as u64, rights) }
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    at: *mut c_void,
    len: usize,
    first: u64,
    rights: c_int,
) -> *mut ibv_mr {
    let mut state = state();
    let key = state.number();
    let region = Region {
        pd: pd.addr(),
        at: at.expose_provenance() as u64,
        len,
        first,
        rights: rights as u32,
    };
    state.regions.insert(key, region);
    // SAFETY: zeroes are a valid `ibv_mr`.
    let mut mr: ibv_mr = unsafe { zeroed() };
    (mr.lkey, mr.rkey) = (key, key);
    new(mr)
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: `mr` comes from `reg_mr_iova`, and the library gives it back once.
    state().regions.remove(&unsafe { (*mr).lkey });
    // SAFETY: `mr` comes from `new` in `reg_mr_iova`, and nothing uses it after this call.
    unsafe { end(mr) }
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = sys::eventfd(libc::EFD_SEMAPHORE).unwrap().release();
    let channel = ibv_comp_channel {
        context,
        fd,
        refcnt: 0,
    };
    let cq = ptr::null_mut();
    new(Channel { channel, cq }).cast()
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: `channel` comes from `create_comp_channel`, and the library gives it back once, and
    // with it the descriptor.
    unsafe {
        libc::close((*channel).fd);
        end(channel.cast::<Channel>())
    }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    len: c_int,
    _: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    // SAFETY: zeroes are a valid `ibv_cq`.
    let mut cq: ibv_cq = unsafe { zeroed() };
    (cq.context, cq.channel, cq.cqe) = (context, channel, len);
    let cq = new(cq);
    // SAFETY: `channel` comes from `create_comp_channel`. Its descriptor stays in place until the
    // library destroys the channel, which it does after the queue.
    let fd = unsafe {
        (*channel.cast::<Channel>()).cq = cq;
        &raw const (*channel).fd
    };
    let queue = Queue {
        fd,
        len: len as usize,
        done: VecDeque::new(),
        armed: false,
    };
    state().queues.insert(cq.addr(), queue);
    cq
}

unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, len: c_int) -> c_int {
    state().queues.get_mut(&cq.addr()).unwrap().len = len as usize;
    // SAFETY: `cq` comes from `create_cq`, and the library has not destroyed it.
    unsafe { (*cq).cqe = len };
    0
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    state().queues.remove(&cq.addr());
    // SAFETY: `cq` comes from `create_cq`, and the library gives it back once.
    unsafe { end(cq) }
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    let mut count = 0u64;
    // SAFETY: `channel` comes from `create_comp_channel`; `count` has eight bytes, and the library
    // gives room for both answers.
    unsafe {
        if libc::read((*channel).fd, (&raw mut count).cast(), 8) != 8 {
            return -1;
        }
        *cq = (*channel.cast::<Channel>()).cq;
        *context = ptr::null_mut();
    }
    0
}

const unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, _: u32) {}

const unsafe extern "C" fn get_async_event(_: *mut ibv_context, _: *mut ibv_async_event) -> c_int {
    -1
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, into: *mut ibv_wc) -> c_int {
    let mut state = state();
    state.advance(cq.addr(), false);
    let mut taken = 0;
    while taken < room as usize
        && let Some((wc, frees)) = state.queues.get_mut(&cq.addr()).unwrap().done.pop_front()
    {
        // SAFETY: the library gives room for `room` completions, and `taken` is below that.
        unsafe { into.add(taken).write(wc) };
        taken += 1;
        if let Some(pair) = state.pairs.get_mut(&wc.qp_num) {
            pair.sends -= frees;
        }
    }
    taken as c_int
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    let mut state = state();
    state.queues.get_mut(&cq.addr()).unwrap().armed = true;
    state.advance(cq.addr(), true);
    0
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` comes from `create_qp`, and the library has not destroyed it.
    let number = unsafe { (*qp).qp_num };
    let mut state = state();
    let mut next = first;
    // SAFETY: the library posts a chain of valid work requests, whose last `next` is null.
    while let Some(request) = unsafe { next.as_ref() } {
        let pair = state.pairs.get_mut(&number).unwrap();
        if pair.sends == pair.room {
            // SAFETY: the library gives room for the answer.
            unsafe { *bad = next };
            return libc::ENOMEM;
        }
        pair.sends += 1;
        let piece = match request.num_sge {
            0 => Piece::default(),
            // SAFETY: `num_sge` is not 0, so `sg_list` points to at least one.
            _ => Piece::from(unsafe { *request.sg_list }),
        };
        let inline = request.send_flags & ibv_send_flags::IBV_SEND_INLINE != 0;
        let from = ptr::with_exposed_provenance(piece.at as usize);
        // SAFETY: ibv_post_send(3) has the library keep the bytes of an inline send valid during
        // the call; the library posts none without bytes.
        let inline = inline.then(|| unsafe { core::slice::from_raw_parts(from, piece.len) });
        // SAFETY: both unions hold plain numbers, whichever field was written.
        let (word, to) = unsafe { (request.__bindgen_anon_1.imm_data, request.wr.rdma) };
        pair.flights.push_back(Flight {
            id: request.wr_id,
            opcode: request.opcode,
            word,
            signaled: request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED != 0,
            inline: inline.map(<[u8]>::to_vec),
            piece,
            to: (to.remote_addr, to.rkey),
        });
        if pair.failed {
            let flight = pair.flights.pop_back().unwrap();
            state.tell(number, flight.id, true, status::IBV_WC_WR_FLUSH_ERR);
        }
        next = request.next;
    }
    let all = state.is_armed(number);
    state.advance_pair(number, all);
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `qp` comes from `create_qp`; the library posts one valid receive at a time.
    let (number, request) = unsafe { ((*qp).qp_num, &*request) };
    let piece = match request.num_sge {
        0 => Piece::default(),
        // SAFETY: `num_sge` is not 0, so `sg_list` points to at least one.
        _ => Piece::from(unsafe { *request.sg_list }),
    };
    let mut state = state();
    let pair = state.pairs.get_mut(&number).unwrap();
    pair.receives.push_back((request.wr_id, piece));
    if pair.failed {
        let (id, _) = pair.receives.pop_back().unwrap();
        let wc = completion(id, ibv_wc_opcode::IBV_WC_RECV, status::IBV_WC_WR_FLUSH_ERR);
        state.complete(number, wc, 0);
    }
    0
}

unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `id` comes from `connection`, as the first field of an `End`, and no other call uses
    // it meanwhile; `attr` is valid during the call.
    let (end, attr) = unsafe { (&mut *id.cast::<End>(), &*attr) };
    let mut state = state();
    let number = state.number();
    let pair = Pair {
        pd: pd.addr(),
        cq: attr.send_cq.addr(),
        connection: end.number,
        side: end.side,
        flights: VecDeque::new(),
        landed: VecDeque::new(),
        receives: VecDeque::new(),
        sends: 0,
        room: attr.cap.max_send_wr,
        heard: 0,
        failed: false,
    };
    state.pairs.insert(number, pair);
    state.connections[end.number].ends[end.side] = Some(number);
    // SAFETY: zeroes are a valid `ibv_qp`.
    let mut qp: ibv_qp = unsafe { zeroed() };
    (qp.context, qp.qp_num) = (end.id.verbs, number);
    end.id.qp = new(qp);
    0
}

unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: `id` comes from `connection`, as the first field of an `End`, and no other call uses
    // it meanwhile.
    let end_of = unsafe { &mut *id.cast::<End>() };
    let qp = core::mem::replace(&mut end_of.id.qp, ptr::null_mut());
    let mut state = state();
    // SAFETY: `qp` comes from `create_qp`, and is destroyed below.
    let number = unsafe { (*qp).qp_num };
    let pair = state.pairs.remove(&number).unwrap();
    state.connections[pair.connection].broken = true;
    let queue = state.queues.get_mut(&pair.cq).unwrap();
    queue.done.retain(|(wc, _)| wc.qp_num != number);
    drop(state);
    // SAFETY: `qp` comes from `new` in `create_qp`, and `id` does not name it any more.
    unsafe { end(qp) };
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, what: c_int) -> c_int {
    // SAFETY: `qp` comes from `create_qp`, and `attr` is valid during the call.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let state_too = what as u32 & ibv_qp_attr_mask::IBV_QP_STATE != 0;
    if state_too && attr.qp_state == ibv_qp_state::IBV_QPS_ERR {
        let mut state = state();
        let at = state.pairs[&number].connection;
        state.connections[at].broken = true;
        state.fail(number, status::IBV_WC_WR_FLUSH_ERR);
    }
    0
}

const unsafe extern "C" fn disconnect(_: *mut rdma_cm_id) -> c_int {
    0
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `connection` has made the `End` of this `id` by a `Box`, and the library gives it
    // back once.
    unsafe { end(id.cast::<End>()) }
}
