//! Connections by RDMA CM: an address is resolved, a route, a queue pair made, the peer asked. Each
//! step is begun by a call that does not wait and ends with an event on the channel's descriptor,
//! which is non-blocking.

use super::api::Api;
use super::device::{Device, Domain};
use super::ffi::{
    rdma_cm_event, rdma_cm_event_type as event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};
use super::queue::{Completions, Pair, Shape};
use crate::sys::{self, Errno};
use core::ffi::c_int;
use core::net::SocketAddr;
use core::ptr::{self, NonNull};

/// Private data of a request: what the connection manager has room for beside its own, in bytes.
pub const REQUEST_LEN: usize = 56;
/// Private data of an answer, in bytes.
pub const ANSWER_LEN: usize = 196;
/// Sends again after an acknowledgement has not come. 7 would be "for ever" on some devices.
const RETRIES: u8 = 6;
/// And when the peer has no receive posted: for ever, since credits keep that from happening.
const RETRIES_NOT_READY: u8 = 7;
/// Time for an acknowledgement, 4.096 us << this: with the retries about two seconds.
const ACK_TIMEOUT: u8 = 16;

/// rdma/rdma_cma.h: RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT.
const OPTION_ID: c_int = 0;
const OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// The descriptor that events come by, and the ids that they are of.
#[derive(Debug)]
pub struct Channel {
    api: &'static Api,
    channel: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm may be called for one channel by any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// What has become of a connection.
#[derive(Debug)]
pub enum Event {
    /// [`Id::dial`]: the address is that of a device; now the route.
    Resolved(Key),
    /// [`Id::route`]: now the queue pair, and the question to the peer.
    Routed(Key),
    /// Somebody asks, on the listener of this key, with these private data.
    Asked(Key, Id, Vec<u8>),
    /// The connection stands, at the dialling end with the answer's private data.
    Established(Key, Vec<u8>),
    /// It does not come to a connection: an event of RDMA CM, its status (an errno, or the
    /// manager's reason), and what the peer said where it refused.
    Refused(Key, u32, c_int, Vec<u8>),
    /// The peer, or the loss of the device, has ended the connection.
    Gone(Key),
    /// Nothing to do with it.
    Other(Key, u32),
}

/// The event of [`Event::Refused`] by which the peer's connection manager says no: nobody listens,
/// or the listener refused.
pub const REJECTED: u32 = event::RDMA_CM_EVENT_REJECTED;

/// What the user knows an id by; stored with it.
pub type Key = u64;

impl Channel {
    /// A new one.
    ///
    /// # Errors
    /// The system's.
    pub fn new(api: &'static Api) -> Result<Self, Errno> {
        // SAFETY: no argument.
        let channel = unsafe { (api.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(sys::last_errno)?;
        let made = Self { api, channel };
        sys::set_nonblocking(made.descriptor())?;
        Ok(made)
    }

    /// Readable when there is an event.
    #[must_use]
    pub fn descriptor(&self) -> c_int {
        // SAFETY: made in `new`.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Puts the descriptor at another number: `copy` makes one of it.
    pub fn rehouse(&self, copy: impl FnOnce(c_int) -> Option<sys::Fd>) {
        // SAFETY: made in `new`; librdmacm uses whatever number stands there.
        unsafe { rehouse(&raw mut (*self.channel.as_ptr()).fd, copy) };
    }

    /// The next event, if there is one.
    pub fn next(&self) -> Option<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: a channel, and room for the answer.
        if unsafe { (self.api.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the event that was got, given back once.
        let seen = unsafe { self.understand(&*event) };
        // SAFETY: as above.
        unsafe { (self.api.rdma_ack_cm_event)(event) };
        Some(seen)
    }

    /// # Safety
    /// An event of this channel's.
    unsafe fn understand(&self, got: &rdma_cm_event) -> Event {
        // SAFETY: the id lives until its events are acknowledged.
        let key = |id: *mut rdma_cm_id| unsafe { (*id).context } as Key;
        let data = || {
            // SAFETY: asked for with events of connections only.
            let param = unsafe { &got.param.conn };
            if param.private_data.is_null() {
                return Vec::new();
            }
            // SAFETY: as many bytes as it says.
            let bytes = unsafe {
                core::slice::from_raw_parts(
                    param.private_data.cast::<u8>(),
                    usize::from(param.private_data_len),
                )
            };
            bytes.to_vec()
        };
        let own = key(got.id);
        match got.event {
            event::RDMA_CM_EVENT_ADDR_RESOLVED => Event::Resolved(own),
            event::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::Routed(own),
            event::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let Some(id) = NonNull::new(got.id) else {
                    return Event::Other(own, got.event);
                };
                let asked = Id { api: self.api, id };
                // SAFETY: a request names the listener that it came to.
                Event::Asked(key(got.listen_id), asked, data())
            }
            event::RDMA_CM_EVENT_ESTABLISHED => Event::Established(own, data()),
            event::RDMA_CM_EVENT_REJECTED => Event::Refused(own, got.event, got.status, data()),
            event::RDMA_CM_EVENT_ADDR_ERROR
            | event::RDMA_CM_EVENT_ROUTE_ERROR
            | event::RDMA_CM_EVENT_CONNECT_ERROR => {
                Event::Refused(own, got.event, got.status, Vec::new())
            }
            event::RDMA_CM_EVENT_DISCONNECTED | event::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                Event::Gone(own)
            }
            // Of a connection that stands UNREACHABLE is a hint only: the caller knows which it is.
            other => Event::Other(own, other),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`; its ids are gone by the order of fields of their owner.
        unsafe { (self.api.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// An end of a connection, or a listener.
#[derive(Debug)]
pub struct Id {
    pub(super) api: &'static Api,
    pub(super) id: NonNull<rdma_cm_id>,
}

// SAFETY: librdmacm may be called for one id by any thread.
unsafe impl Send for Id {}

impl Id {
    fn new(channel: &Channel, key: Key) -> Result<Self, Errno> {
        let api = channel.api;
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a channel, and room for the answer.
        check(unsafe {
            (api.rdma_create_id)(channel.channel.as_ptr(), &raw mut id, key as *mut _, space)
        })?;
        let id = NonNull::new(id).ok_or(libc::ENOMEM)?;
        Ok(Self { api, id })
    }

    /// Begins to reach `peer`, from `local` if that is given; [`Event::Resolved`] follows, or a
    /// refusal.
    ///
    /// # Errors
    /// ENODEV: no route to it leaves by an RDMA device; the system's.
    pub fn dial(
        channel: &Channel,
        key: Key,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        timeout_ms: i32,
    ) -> Result<Self, Errno> {
        let id = Self::new(channel, key)?;
        let mut local = local.map(|addr| sys::socket_address(addr).0);
        let (mut peer, _) = sys::socket_address(peer);
        let local = local
            .as_mut()
            .map_or(ptr::null_mut(), |a| ptr::from_mut(a).cast());
        let peer = ptr::from_mut(&mut peer).cast();
        // SAFETY: an id and addresses that are read at once.
        check(unsafe { (id.api.rdma_resolve_addr)(id.id.as_ptr(), local, peer, timeout_ms) })?;
        Ok(id)
    }

    /// Listens on `at`, a port of 0 being one of the system's choice.
    ///
    /// # Errors
    /// EADDRINUSE; the system's.
    pub fn listen(channel: &Channel, key: Key, at: SocketAddr) -> Result<Self, Errno> {
        let id = Self::new(channel, key)?;
        let (mut at, _) = sys::socket_address(at);
        // SAFETY: an id and an address that is read at once.
        check(unsafe { (id.api.rdma_bind_addr)(id.id.as_ptr(), ptr::from_mut(&mut at).cast()) })?;
        // SAFETY: a bound id.
        check(unsafe { (id.api.rdma_listen)(id.id.as_ptr(), 64) })?;
        Ok(id)
    }

    /// The port of a listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        // SAFETY: an id.
        u16::from_be(unsafe { (self.api.rdma_get_src_port)(self.id.as_ptr()) })
    }

    /// The user's word of it from now on.
    pub fn set_key(&self, key: Key) {
        // SAFETY: an id; librdmacm only hands the word on.
        unsafe { (*self.id.as_ptr()).context = key as *mut _ };
    }

    /// After [`Event::Resolved`]; [`Event::Routed`] follows, or a refusal.
    ///
    /// # Errors
    /// The system's.
    pub fn route(&self, timeout_ms: i32) -> Result<(), Errno> {
        let mut timeout = ACK_TIMEOUT;
        let (level, option) = (OPTION_ID, OPTION_ID_ACK_TIMEOUT);
        let value = (&raw mut timeout).cast();
        // SAFETY: an option of one byte. Devices that know no such thing refuse it, and keep their
        // own.
        unsafe { (self.api.rdma_set_option)(self.id.as_ptr(), level, option, value, 1) };
        // SAFETY: a resolved id.
        check(unsafe { (self.api.rdma_resolve_route)(self.id.as_ptr(), timeout_ms) })
    }

    /// The device by which the peer is reached, once that is known.
    ///
    /// # Errors
    /// ENODEV before that; the device's.
    pub fn device(&self) -> Result<Device, Errno> {
        // SAFETY: an id.
        let context = NonNull::new(unsafe { (*self.id.as_ptr()).verbs }).ok_or(libc::ENODEV)?;
        // SAFETY: librdmacm has opened it.
        unsafe { Device::of(self.api, context) }
    }

    /// Can it be told anything? While the port is down it cannot: some devices never send again
    /// after they have tried.
    #[must_use]
    pub fn is_port_active(&self) -> bool {
        // SAFETY: an id.
        let port = unsafe { (*self.id.as_ptr()).port_num };
        self.device()
            .is_ok_and(|device| device.is_port_active(port))
    }

    /// Makes the queue pair.
    ///
    /// # Errors
    /// As [`Pair::new`].
    pub fn pair(
        &self,
        domain: &Domain,
        completions: &Completions,
        shape: Shape,
    ) -> Result<Pair, Errno> {
        // SAFETY: an id that has none yet, or the device refuses; the pair goes before the id by
        // the order of fields of their owner.
        unsafe { Pair::new(self.id, domain, completions, shape) }
    }

    /// Asks the peer, with at most [`REQUEST_LEN`] bytes; [`Event::Established`] follows, or a
    /// refusal.
    ///
    /// # Errors
    /// The system's; ECONNREFUSED at once where an iWARP peer has no listener.
    pub fn connect(&self, data: &[u8]) -> Result<(), Errno> {
        let mut param = terms(data);
        // SAFETY: a routed id with a queue pair, data that are read at once.
        check(unsafe { (self.api.rdma_connect)(self.id.as_ptr(), &raw mut param) })
    }

    /// Answers the asker, with at most [`ANSWER_LEN`] bytes; [`Event::Established`] follows.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self, data: &[u8]) -> Result<(), Errno> {
        let mut param = terms(data);
        // SAFETY: an id that was asked for, with a queue pair, data that are read at once.
        check(unsafe { (self.api.rdma_accept)(self.id.as_ptr(), &raw mut param) })
    }

    /// Refuses the asker.
    ///
    /// # Errors
    /// The system's.
    pub fn refuse(&self, data: &[u8]) -> Result<(), Errno> {
        let len = u8::try_from(data.len()).map_err(|_| libc::EINVAL)?;
        // SAFETY: an id that was asked for, data that are read at once.
        check(unsafe { (self.api.rdma_reject)(self.id.as_ptr(), data.as_ptr().cast(), len) })
    }

    /// Tells the peer that the connection ends. Not while the port is down, and then before this is
    /// dropped.
    pub fn disconnect(&self) {
        // SAFETY: an id; one that is not connected refuses.
        unsafe { (self.api.rdma_disconnect)(self.id.as_ptr()) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made in `new`, or brought by an event. Waits until the events of it are
        // acknowledged, which `next` does before it returns.
        unsafe {
            if !(*self.id.as_ptr()).qp.is_null() {
                (self.api.rdma_destroy_qp)(self.id.as_ptr());
            }
            (self.api.rdma_destroy_id)(self.id.as_ptr());
        }
    }
}

/// Another number for a descriptor that a library keeps.
///
/// # Safety
/// `place` is where it does, and nobody uses the descriptor now.
pub(super) unsafe fn rehouse(place: *mut c_int, copy: impl FnOnce(c_int) -> Option<sys::Fd>) {
    // SAFETY: the caller's word.
    let old = unsafe { *place };
    if let Some(new) = copy(old) {
        // SAFETY: the caller's word.
        unsafe { *place = new.release() };
        let _ = sys::close(old);
    }
}

fn terms(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len().min(ANSWER_LEN) as u8,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES_NOT_READY,
        srq: 0,
        qp_num: 0,
    }
}

fn check(failed: c_int) -> Result<(), Errno> {
    if failed == 0 {
        Ok(())
    } else {
        Err(sys::last_errno())
    }
}
