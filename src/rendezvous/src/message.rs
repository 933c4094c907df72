//! Receives records: of a meeting, or over a link's control socket. Only the sender's credentials
//! are the kernel's word; the rest is the peer's. A record of another length, magic or version is
//! refused, and each user of a number checks it. A descriptor may belong to any file, also to one
//! whose `close` or `fstat` waits for a file server. An unexpected one ends the meeting or the
//! link, and no call is made on it.

use super::closer;
use core::mem::size_of;
use sluice_fabric::sys::{self, Fd};
use sluice_sockets::record::{CREDENTIALS, Control, send_bytes, space};

pub use sluice_sockets::record::{Kind, LEN, Message, Nonce, REUSE, VERSION, send};

/// The sender of a record, as the kernel states it: its process id in this namespace, and the user
/// that it named, which must be one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// 0: it has no id in this namespace.
    pub pid: i32,
    /// See [`Kind::is_proof`].
    pub uid: u32,
}

/// The most descriptors of one message (`SCM_MAX_FD`). If the buffer has room for fewer, the kernel
/// closes the others in the receiving thread.
const FDS_MAX: usize = 253;

const ALL_RIGHTS: usize = space(FDS_MAX * size_of::<i32>());

/// A descriptor that a record has brought. Unless accepted, it is closed in another thread.
#[derive(Debug)]
pub struct Brought(Option<Fd>);

impl Brought {
    /// Takes the descriptor, when it is the expected one: closing it does not block.
    #[must_use]
    pub fn accept(mut self) -> Option<Fd> {
        self.0.take()
    }

    /// The descriptor, to look at it.
    #[must_use]
    pub fn fd(&self) -> Option<&Fd> {
        self.0.as_ref()
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        closer::dispose(self.0.take().into_iter().collect());
    }
}

/// What was received.
#[derive(Debug)]
pub enum Received {
    /// A record, its sender, and the descriptor that it brought.
    Message(Message, Option<Sender>, Option<Brought>),
    /// No record is unread.
    Nothing,
    /// The peer has closed the socket.
    Gone,
    /// The peer sent something other than a record.
    Wrong,
}

/// What is unread at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// End of file.
    End,
    /// A message without descriptors.
    Plain,
    /// A message that brings descriptors.
    Brings,
}

/// Repeats a call that fails with ECONNRESET. A peer that closed its socket with unread input
/// leaves this error, and the kernel reports it once, before the messages that are still queued.
fn past_reset<T>(mut call: impl FnMut() -> Result<T, sys::Errno>) -> Result<T, sys::Errno> {
    match call() {
        Err(libc::ECONNRESET) => call(),
        done => done,
    }
}

/// Peeks at the next unread message: no descriptor comes in, and none is closed.
#[must_use]
pub fn next(socket: i32) -> Next {
    let mut control = Control([0u8; CREDENTIALS]);
    // SAFETY: a plain C structure, for which all zeroes are a valid value.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let looked = past_reset(|| {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len();
        // SAFETY: `header` and `control` live until the call returns. No byte is wanted.
        unsafe { sys::recvmsg(socket, &raw mut header, flags) }
    });
    match looked {
        // The buffer has room for the credentials only, so MSG_CTRUNC means descriptors.
        Ok(_) if header.msg_flags & libc::MSG_CTRUNC != 0 => Next::Brings,
        // Each message carries its sender's credentials, and the end of file does not.
        Ok(_) if header.msg_controllen != 0 => Next::Plain,
        Err(libc::EAGAIN | libc::EINTR) => Next::Nothing,
        _ => Next::End,
    }
}

/// A message: its bytes (one more than a record's at most, to notice longer ones), its sender and
/// its descriptors.
struct Raw {
    bytes: [u8; LEN + 1],
    len: usize,
    sender: Option<Sender>,
    fds: [i32; FDS_MAX],
    fd_count: usize,
}

/// Takes a message without waiting. The kernel closes, in this thread, descriptors beyond this
/// process's limit.
fn take(socket: i32) -> Result<Raw, sys::Errno> {
    let mut raw = Raw {
        bytes: [0; LEN + 1],
        len: 0,
        sender: None,
        fds: [-1; FDS_MAX],
        fd_count: 0,
    };
    let mut piece = libc::iovec {
        iov_base: raw.bytes.as_mut_ptr().cast(),
        iov_len: raw.bytes.len(),
    };
    let mut control = Control([0u8; CREDENTIALS + ALL_RIGHTS]);
    // SAFETY: a plain C structure, for which all zeroes are a valid value.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    raw.len = past_reset(|| {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len();
        // SAFETY: `header`, `piece`, `raw` and `control` live until the call returns.
        unsafe { sys::recvmsg(socket, &raw mut header, flags) }
    })?;
    // SAFETY: the kernel has filled `control` and set its length; the macros stay inside it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            let data = libc::CMSG_DATA(at);
            match ((*at).cmsg_level, (*at).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let who = core::ptr::read_unaligned(data.cast::<libc::ucred>());
                    let libc::ucred { pid, uid, .. } = who;
                    raw.sender = Some(Sender { pid, uid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let data_len =
                        ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                    for i in 0..data_len / size_of::<i32>() {
                        if let Some(to) = raw.fds.get_mut(raw.fd_count) {
                            *to = core::ptr::read_unaligned(data.cast::<i32>().add(i));
                            raw.fd_count += 1;
                        }
                    }
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    Ok(raw)
}

/// Receives a record without waiting. A message with several descriptors is refused.
pub fn receive(socket: i32) -> Received {
    let raw = match take(socket) {
        Ok(raw) => raw,
        Err(libc::EAGAIN | libc::EINTR) => return Received::Nothing,
        Err(_) => return Received::Gone,
    };
    let fds = raw.fds.iter().take(raw.fd_count);
    let mut fds: Vec<Fd> = fds.map(|&fd| Fd::own(fd)).collect();
    let message = raw.bytes.get(..raw.len).and_then(Message::from_bytes);
    match message {
        Some(message) if fds.len() <= 1 => {
            let brought = fds.pop().map(|fd| Brought(Some(fd)));
            Received::Message(message, raw.sender, brought)
        }
        // Only the end of file has no sender.
        _ if raw.len == 0 && raw.sender.is_none() => Received::Gone,
        _ => {
            closer::dispose(fds);
            Received::Wrong
        }
    }
}

/// Takes a message, and sends it on by `to` if it brings one descriptor that `is_wanted`. Runs in a
/// process that shares this one's memory but not its descriptors, so it makes system calls and
/// touches only its stack. When that process exits, the kernel closes what was not sent on.
pub fn forward(socket: i32, to: i32, is_wanted: fn(i32) -> bool) {
    let Ok(mut raw) = take(socket) else { return };
    let [fd, ..] = raw.fds;
    if raw.fd_count != 1 || !is_wanted(fd) {
        return;
    }
    let _ = send_bytes(to, raw.bytes.get_mut(..raw.len), None, Some(fd));
}

/// Writes `bytes` at `at`. Callers leave room for them.
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = buffer.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

/// The bytes at `at`; zeroes where there are too few.
pub(crate) fn get<const N: usize>(buffer: &[u8], at: usize) -> [u8; N] {
    buffer
        .get(at..at + N)
        .and_then(|b| b.try_into().ok())
        .unwrap_or([0; N])
}

#[cfg(test)]
#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test process has no hooks"
)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    /// Both ends of a socket for records, prepared as in a meeting.
    fn pair() -> [Fd; 2] {
        let ends = sys::socket_pair().unwrap();
        for end in &ends {
            super::super::identity::prepare(end.raw()).unwrap();
            let _ = super::super::identity::let_descriptors_in(end.raw(), true);
        }
        ends
    }

    /// Waits until all closing threads have ended.
    fn await_closers() {
        while closer::busy() != 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_record_survives_the_way_with_its_descriptor_and_its_sender() {
        let [a, b] = pair();
        let message = Message {
            index: 77,
            token: [1, u64::MAX],
            nonce: [2, 3],
            echo: [u64::MAX, 4],
            descriptor: 9,
            mirror: u64::MAX - 1,
            ..Message::new(Kind::Claim)
        };
        let (near, far) = sys::doorbell().unwrap();
        let memory = sys::memfd(c"arena").unwrap();
        for fd in [near.raw(), far.raw(), memory.raw()] {
            send(a.raw(), &message, Some(fd)).unwrap();
            assert_eq!(next(b.raw()), Next::Brings);
            let Received::Message(got, Some(sender), Some(_)) = receive(b.raw()) else {
                panic!("no record")
            };
            assert_eq!(got, message);
            assert_eq!(sender.pid, sluice_runtime::process::pid() as i32);
            // SAFETY: has no arguments and no effect.
            assert_eq!(sender.uid, unsafe { libc::geteuid() });
        }
        send(a.raw(), &message, None).unwrap();
        assert_eq!(next(b.raw()), Next::Plain);
        let Received::Message(_, Some(_), None) = receive(b.raw()) else {
            panic!("no record")
        };
        assert_eq!(next(b.raw()), Next::Nothing);
        assert!(matches!(receive(b.raw()), Received::Nothing));
        drop(a);
        assert_eq!(next(b.raw()), Next::End);
        assert!(matches!(receive(b.raw()), Received::Gone));
    }

    #[test]
    fn a_descriptor_of_another_kind_does_not_come_in() {
        let [a, b] = pair();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let message = Message::new(Kind::Reply);
        let small = sys::memfd(c"small").unwrap();
        for fd in [a.raw(), file.as_raw_fd(), small.raw()] {
            send(a.raw(), &message, Some(fd)).unwrap();
            let porter = closer::receive(b.raw(), None).unwrap();
            let _ = sys::poll_one(porter.raw(), libc::POLLIN, None);
            assert!(matches!(receive(porter.raw()), Received::Gone));
        }
        // A memory file of the arena's length is passed on.
        sys::ftruncate(small.raw(), sluice_fabric::layout::ARENA_LEN).unwrap();
        send(a.raw(), &message, Some(small.raw())).unwrap();
        let porter = closer::receive(b.raw(), None).unwrap();
        let _ = sys::poll_one(porter.raw(), libc::POLLIN, None);
        let Received::Message(got, _, Some(fd)) = receive(porter.raw()) else {
            panic!("no memory")
        };
        assert_eq!(got, message);
        assert_eq!(
            sys::fstat(fd.fd().unwrap().raw()).unwrap().st_ino,
            sys::fstat(small.raw()).unwrap().st_ino
        );
        drop(fd);
        await_closers();
    }

    #[test]
    fn a_socket_that_lingers_holds_nobody_up() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stuck = || {
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (other, _) = listener.accept().unwrap();
            let fd = tcp.as_raw_fd();
            // More bytes than the other end, which reads none, has room for.
            let bytes = vec![0u8; 1 << 16];
            // SAFETY: `bytes` has that length, and lives until the call returns.
            while unsafe { sys::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT) }.is_ok()
            {
            }
            sys::set_linger(fd, Some(60));
            (tcp, other)
        };
        let bring = |by: &Fd| {
            let (tcp, other) = stuck();
            send(by.raw(), &Message::new(Kind::Reply), Some(tcp.as_raw_fd())).unwrap();
            other
        };
        // A child that another test has forked may hold the last reference to a socket. Then no
        // close blocks, so try again.
        let has_waited = (0..20).any(|_| {
            let begun = std::time::Instant::now();
            // Received; unread in a socket that is closed; unread in a connection not accepted.
            let [a, b] = pair();
            let _received = bring(&a);
            let Received::Message(_, _, Some(brought)) = receive(b.raw()) else {
                panic!("no record")
            };
            drop(brought);
            let _unread = bring(&a);
            drop(a);
            closer::close(b);
            let name = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
            let family = libc::AF_UNIX as libc::sa_family_t;
            sys::bind(name.raw(), &family, size_of_val(&family)).unwrap();
            sys::listen(name.raw(), 1).unwrap();
            let (at, len) = sys::socket_name(name.raw(), false).unwrap();
            let visitor = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
            sys::connect(visitor.raw(), &at, len).unwrap();
            let _waiting = bring(&visitor);
            drop(visitor);
            closer::close(name);
            assert!(begun.elapsed().as_secs() < 30);
            // Quick closes have ended by now. (A process that ends does not linger.)
            std::thread::sleep(std::time::Duration::from_millis(50));
            closer::busy() != 0 || closer::porters() != 0
        });
        assert!(has_waited);
        // The other ends are gone, so no close lingers any more.
        while closer::busy() != 0 || closer::porters() != 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_lies_behind_a_reset_is_seen() {
        let [a, b] = pair();
        // `b` does not read this, and `a` closes after its own message.
        send(b.raw(), &Message::new(Kind::Claim), None).unwrap();
        let (near, _far) = sys::doorbell().unwrap();
        send(a.raw(), &Message::new(Kind::Reply), Some(near.raw())).unwrap();
        drop(a);
        assert_eq!(next(b.raw()), Next::Brings);
        assert_eq!(next(b.raw()), Next::Brings);
        let [a, b] = pair();
        send(b.raw(), &Message::new(Kind::Claim), None).unwrap();
        send(a.raw(), &Message::new(Kind::Decline), None).unwrap();
        drop(a);
        assert!(matches!(receive(b.raw()), Received::Message(..)));
        assert!(matches!(receive(b.raw()), Received::Gone));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (a, b) = UnixDatagram::pair().unwrap();
        for bytes in [&b"x"[..], &[0u8; LEN], &[0u8; LEN + 7]] {
            a.send(bytes).unwrap();
            assert!(matches!(receive(b.as_raw_fd()), Received::Wrong));
        }
        let good = Message::new(Kind::Ask).to_bytes();
        for len in 0..LEN {
            assert_eq!(Message::from_bytes(&good[..len]), None);
        }
    }

    #[test]
    fn any_bytes_are_understood_in_one_way_or_refused() {
        let mut draw = sluice_sockets::testing::draws(1);
        let good = Message::new(Kind::Ask).to_bytes();
        let mut understood = 0;
        for _ in 0..200_000 {
            let mut bytes = good.to_vec();
            for _ in 0..draw() % 8 {
                let at = draw() as usize % LEN;
                bytes[at] = draw() as u8;
            }
            bytes.resize(LEN + usize::from(draw().is_multiple_of(16)), 0);
            if let Some(message) = Message::from_bytes(&bytes) {
                // Bytes after the fields are ignored.
                assert_eq!(message.to_bytes()[..76], bytes[..76]);
                understood += 1;
            }
        }
        assert!((20_000..180_000).contains(&understood), "{understood}");
    }
}
