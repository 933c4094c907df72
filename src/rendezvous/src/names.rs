//! The name of a connection: an abstract Unix socket. The end that comes first binds it, the other
//! one connects to it.

use super::closer::Way;
use super::identity::{self, Claimant};
use super::message::{self, Kind, Message, VERSION};
use super::{Look, Pending, Stage, decline};
use sluice_fabric::sys::{self, Fd};
use sluice_runtime::own_fds;
use sluice_stats::Reason;

/// Tries to connect to a name that is bound and does not listen yet.
const CONNECT_TRIES: u32 = 3;

/// The abstract address of a connection.
fn address(key: u64) -> (libc::sockaddr_un, usize) {
    use std::io::Write;
    // SAFETY: a plain C structure, for which all zeroes are a valid value.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut name = [0u8; 64];
    let mut rest = name.as_mut_slice();
    let _ = write!(rest, "sluice/{VERSION}/{key:x}");
    let len = 64 - rest.len();
    // The first byte stays 0: an abstract name.
    for (to, from) in addr.sun_path.iter_mut().skip(1).zip(name.iter().take(len)) {
        *to = *from as libc::c_char;
    }
    (addr, size_of::<libc::sa_family_t>() + 1 + len)
}

/// Binds the name, or connects to the process that has bound it.
pub(super) fn first_or_second(look: Look) -> Result<Pending, Reason> {
    let (addr, len) = address(look.key);
    for _ in 0..CONNECT_TRIES {
        let socket = own_socket()?;
        if sys::bind(socket.raw(), &addr, len).is_ok() {
            sys::listen(socket.raw(), 1).map_err(|_| Reason::NameTaken)?;
            return Ok(look.at(Stage::Named { sent_away: 0 }, Some(socket)));
        }
        // The name is bound already. The same socket can still connect to it.
        if connect(socket.raw(), look.key)? {
            return greet(look, socket);
        }
    }
    Err(Reason::NameTaken)
}

/// Connects to the process that has bound the name. False: it does not listen yet, or is gone.
fn connect(socket: i32, key: u64) -> Result<bool, Reason> {
    let (addr, len) = address(key);
    match sys::connect(socket, &addr, len) {
        Ok(()) => Ok(true),
        Err(libc::ECONNREFUSED) => Ok(false),
        Err(_) => Err(Reason::NameTaken),
    }
}

/// Begins the meeting with the process that has bound the name: sends it a Challenge, or a Decline
/// if this end stays on TCP.
pub(super) fn greet(look: Look, socket: Way) -> Result<Pending, Reason> {
    let claimant = Claimant::behind(socket.raw(), look.mirror)?;
    let first = look.refuses.map_or(
        Message {
            nonce: look.nonce,
            ..Message::new(Kind::Challenge)
        },
        decline::message,
    );
    message::send(socket.raw(), &first, None).map_err(|_| Reason::NameTaken)?;
    if look.refuses.is_none() {
        // The answer may come while the program is in a wait that no hook ends, so the control
        // thread reads it. If it cannot start, the step that needs it says so.
        let _ = sluice_runtime::control_thread::start();
    }
    let mut meeting = look.at(Stage::Dialled, Some(socket));
    meeting.claimant = Some(claimant);
    Ok(meeting)
}

/// A socket connected to the name of the connection with this key. `None`: no process waits there.
pub(super) fn come_to(key: u64) -> Result<Option<Way>, Reason> {
    let socket = new_socket()?;
    if connect(socket.raw(), key)? {
        prepare(socket).map(Some)
    } else {
        Ok(None)
    }
}

/// Begins a meeting with the other end if it waits at the name.
pub(super) fn visit(look: Look) -> Result<Option<Pending>, Reason> {
    let arrived = come_to(look.key)?;
    arrived.map(|socket| greet(look, socket)).transpose()
}

fn own_socket() -> Result<Way, Reason> {
    prepare(new_socket()?)
}

fn new_socket() -> Result<Fd, Reason> {
    sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).map_err(|_| Reason::DescriptorLimit)
}

/// Makes a new socket ready for a meeting, before anything is sent by it.
fn prepare(socket: Fd) -> Result<Way, Reason> {
    let socket = own_fds::lift(socket).ok_or(Reason::DescriptorLimit)?;
    identity::prepare(socket.raw())?;
    Ok(Way::new(socket))
}
