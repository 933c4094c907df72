//! The messages of a meeting and of a link's control socket: one record, 96 bytes, on a
//! SOCK_SEQPACKET Unix socket, with up to two descriptors.
//!
//! A peer may send anything: a record of another length, magic or version is refused, and every number is checked by whoever uses it.
//! A descriptor may be of any file, also of one whose close, or whose status, waits for whoever serves it: those of other kinds than
//! records bring end the meeting, or the link, and nothing is asked of them.

use core::mem::size_of;
use sluice_fabric::shm::Token;
use sluice_fabric::sys::{self, Fd};

/// First bytes of every record.
const MAGIC: u32 = u32::from_le_bytes(*b"slce");

/// Version of these records and of the meeting. Another one is declined, at both ends with a reason.
pub const VERSION: u16 = 1;

/// Bytes of a record.
pub const LEN: usize = 96;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Second comer to first: who I am. With an O_PATH descriptor of my TCP socket.
    Hello = 1,
    /// First comer to second: who I am, the stream's slot. With my O_PATH descriptor and, for a new link, the arena.
    Reply = 2,
    /// Second comer to first: joined.
    Joined = 3,
    /// Either: no; `reason` says why.
    Decline = 4,
    /// Over a link: my socket of the connection `token[0]` waits for a stream. With my O_PATH descriptor.
    Ask = 5,
    /// Over a link: stream `index` for that connection. With my O_PATH descriptor.
    Grant = 6,
    /// My waiter slot `index` needs a doorbell.
    WantBell = 16,
    /// Here is the far end of the doorbell for your slot `index`.
    Bell = 17,
    /// Your slot `index` sleeps and I have no doorbell for it.
    Wake = 18,
    /// Look at the words of stream `index`.
    Attention = 19,
    /// My waiter slot `index` is gone: give its doorbell up.
    DropBell = 20,
}

impl Kind {
    fn from_u16(n: u16) -> Option<Self> {
        [
            Kind::Hello,
            Kind::Reply,
            Kind::Joined,
            Kind::Decline,
            Kind::Ask,
            Kind::Grant,
            Kind::WantBell,
            Kind::Bell,
            Kind::Wake,
            Kind::Attention,
            Kind::DropBell,
        ]
        .into_iter()
        .find(|&k| k as u16 == n)
    }
}

/// A record. Fields that a kind does not use are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// Version of the sender.
    pub version: u16,
    /// Number of the arena's layout.
    pub layout: u32,
    /// `size_of::<usize>()` of the sender.
    pub word_len: u16,
    /// A `Reason` as a number.
    pub reason: u16,
    /// A stream or a waiter slot.
    pub index: u32,
    /// [`REUSE`], [`IDLE`].
    pub flags: u32,
    /// Who sends.
    pub token: Token,
    /// Inode of the sender's TCP socket.
    pub inode: u64,
    /// Effective capabilities of the sender.
    pub capabilities: u64,
}

/// Bit of [`Message::flags`] in a Reply: use the link that both have.
pub const REUSE: u32 = 1;

/// Bit of [`Message::flags`] in an Ask: no other meeting of this connection is under way here.
pub const IDLE: u32 = 2;

impl Message {
    /// A record of this kind, the rest zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            version: VERSION,
            layout: sluice_fabric::layout::LAYOUT,
            word_len: size_of::<usize>() as u16,
            reason: 0,
            index: 0,
            flags: 0,
            token: [0; 2],
            inode: 0,
            capabilities: 0,
        }
    }

    /// A record about a slot or a stream.
    #[must_use]
    pub fn about(kind: Kind, index: u32) -> Self {
        Self {
            index,
            ..Self::new(kind)
        }
    }

    /// The bytes, little-endian:
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..4 | magic "slce" |
    /// | 4..6 | version |
    /// | 6..8 | kind |
    /// | 8..12 | layout |
    /// | 12..14 | word length |
    /// | 14..16 | reason |
    /// | 16..20 | index |
    /// | 20..24 | flags |
    /// | 24..40 | token |
    /// | 40..48 | inode |
    /// | 48..56 | capabilities |
    /// | 56..96 | zero |
    #[must_use]
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0u8; LEN];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(to) = bytes.get_mut(at..at + part.len()) {
                to.copy_from_slice(part);
            }
            at += part.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.version.to_le_bytes());
        put(&(self.kind as u16).to_le_bytes());
        put(&self.layout.to_le_bytes());
        put(&self.word_len.to_le_bytes());
        put(&self.reason.to_le_bytes());
        put(&self.index.to_le_bytes());
        put(&self.flags.to_le_bytes());
        for half in self.token {
            put(&half.to_le_bytes());
        }
        put(&self.inode.to_le_bytes());
        put(&self.capabilities.to_le_bytes());
        bytes
    }

    /// Parses a record; `None` if it is none. The version may be another one: the caller declines.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
            bytes.get(at..at + N)?.try_into().ok()
        }
        if bytes.len() != LEN || u32::from_le_bytes(part(bytes, 0)?) != MAGIC {
            return None;
        }
        Some(Self {
            version: u16::from_le_bytes(part(bytes, 4)?),
            kind: Kind::from_u16(u16::from_le_bytes(part(bytes, 6)?))?,
            layout: u32::from_le_bytes(part(bytes, 8)?),
            word_len: u16::from_le_bytes(part(bytes, 12)?),
            reason: u16::from_le_bytes(part(bytes, 14)?),
            index: u32::from_le_bytes(part(bytes, 16)?),
            flags: u32::from_le_bytes(part(bytes, 20)?),
            token: [
                u64::from_le_bytes(part(bytes, 24)?),
                u64::from_le_bytes(part(bytes, 32)?),
            ],
            inode: u64::from_le_bytes(part(bytes, 40)?),
            capabilities: u64::from_le_bytes(part(bytes, 48)?),
        })
    }
}

/// Descriptors that came with a record, in order.
pub type Brought = [Option<Fd>; 2];

/// Room for two descriptors' control message, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a record, never waiting.
///
/// # Errors
/// The kernel's; EAGAIN when the peer does not read.
pub fn send(socket: i32, message: &Message, with: &[i32]) -> Result<(), sys::Errno> {
    let mut bytes = message.to_bytes();
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: LEN,
    };
    let mut control = Control([0; 64]);
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    if !with.is_empty() {
        let with = with.get(..2).unwrap_or(with);
        let data_len = size_of_val(with) as u32;
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: pure arithmetic.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(data_len) } as usize;
        // SAFETY: the control room is larger than one header with two descriptors.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(data_len) as usize;
            core::ptr::copy_nonoverlapping(
                with.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(first),
                data_len as usize,
            );
        }
    }
    // SAFETY: the header and all it points to live until the call returns.
    unsafe {
        sys::sendmsg(
            socket,
            &raw const header,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    }
    .map(drop)
}

/// What was received.
#[derive(Debug)]
pub enum Received {
    /// A record.
    Message(Message, Brought),
    /// Nothing now.
    Nothing,
    /// The peer is gone, or sent what is no record.
    Gone,
}

/// Is it of a kind that records bring: a name of a file, a pipe, a memory file? They close without waiting for anybody.
fn is_known(fd: &Fd) -> bool {
    sys::is_name(fd.raw()) || sys::is_pipe(fd.raw()) || sys::is_memory(fd.raw())
}

/// Closes a descriptor of another kind.
fn get_rid_of(fd: Fd) {
    // A socket that was closed with bytes to send may be told to wait for them: by nobody here.
    sys::set_linger(fd.raw(), None);
    drop(fd);
}

/// Receives a record, never waiting. With more than two descriptors, or others than [`is_known`], it is none. Where this process may have no
/// more of them it comes without.
pub fn receive(socket: i32) -> Received {
    let mut bytes = [0u8; LEN + 1];
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; 64]);
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header and all it points to live until the call returns.
    let len = match unsafe { sys::recvmsg(socket, &raw mut header, flags) } {
        Ok(len) => len,
        Err(libc::EAGAIN | libc::EINTR) => return Received::Nothing,
        Err(_) => return Received::Gone,
    };
    let mut brought: Brought = [None, None];
    let (mut count, mut foreign) = (0, false);
    // SAFETY: the kernel has filled the control room and set its length; the macros stay inside it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(at).cast::<i32>();
                let n = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize)
                    / size_of::<i32>();
                for i in 0..n {
                    let fd = Fd::own(core::ptr::read_unaligned(data.add(i)));
                    if !is_known(&fd) {
                        get_rid_of(fd);
                        foreign = true;
                    } else if let Some(to) = brought.get_mut(count) {
                        *to = Some(fd);
                    }
                    count += 1;
                }
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    if len == 0 || foreign || count > brought.len() {
        return Received::Gone;
    }
    match bytes.get(..len).and_then(Message::from_bytes) {
        Some(message) => Received::Message(message, brought),
        None => Received::Gone,
    }
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

    #[test]
    fn a_record_survives_the_way_with_its_descriptors() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let message = Message {
            index: 77,
            token: [1, u64::MAX],
            inode: 99,
            ..Message::new(Kind::Reply)
        };
        let name = super::super::proof(a.as_raw_fd()).unwrap();
        let (near, far) = sys::doorbell().unwrap();
        let memory = sys::memfd(c"arena").unwrap();
        for second in [near.raw(), far.raw(), memory.raw()] {
            send(a.as_raw_fd(), &message, &[name.raw(), second]).unwrap();
            let Received::Message(got, [Some(x), Some(_)]) = receive(b.as_raw_fd()) else {
                panic!("no record")
            };
            assert_eq!(got, message);
            let inode = sys::fstat(a.as_raw_fd()).unwrap().st_ino;
            assert_eq!(sys::socket_inode(x.raw()), Some(inode));
            assert!(sys::is_name(x.raw()) && !sys::is_name(a.as_raw_fd()));
        }
        assert!(matches!(receive(b.as_raw_fd()), Received::Nothing));
    }

    #[test]
    fn a_record_with_descriptors_of_another_kind_is_refused() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let message = Message::new(Kind::Hello);
        for fd in [a.as_raw_fd(), file.as_raw_fd()] {
            send(a.as_raw_fd(), &message, &[fd]).unwrap();
            assert!(matches!(receive(b.as_raw_fd()), Received::Gone));
        }
    }

    #[test]
    fn a_socket_that_lingers_holds_nobody_up() {
        use std::net::{TcpListener, TcpStream};
        let (a, b) = UnixDatagram::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_stuck, _) = listener.accept().unwrap();
        let fd = tcp.as_raw_fd();
        // More than the other end takes, which reads nothing.
        let bytes = vec![0u8; 1 << 16];
        // SAFETY: an array of that length.
        while unsafe { sys::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT) }.is_ok() {}
        send(a.as_raw_fd(), &Message::new(Kind::Hello), &[fd]).unwrap();
        sys::set_linger(fd, Some(60));
        // From here on the message has the last one.
        drop(tcp);
        let begun = std::time::Instant::now();
        assert!(matches!(receive(b.as_raw_fd()), Received::Gone));
        assert!(begun.elapsed().as_secs() < 30);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (a, b) = UnixDatagram::pair().unwrap();
        for bytes in [&b"x"[..], &[0u8; LEN], &[0u8; LEN + 7]] {
            a.send(bytes).unwrap();
            assert!(matches!(receive(b.as_raw_fd()), Received::Gone));
        }
        let good = Message::new(Kind::Hello).to_bytes();
        for len in 0..LEN {
            assert_eq!(Message::from_bytes(&good[..len]), None);
        }
    }

    #[test]
    fn any_bytes_are_understood_in_one_way_or_refused() {
        let mut draw = crate::sockets::testing::draws();
        let good = Message::new(Kind::Hello).to_bytes();
        let mut understood = 0;
        for _ in 0..200_000 {
            let mut bytes = good.to_vec();
            for _ in 0..draw() % 8 {
                let at = draw() as usize % LEN;
                bytes[at] = draw() as u8;
            }
            bytes.resize(LEN + usize::from(draw().is_multiple_of(16)), 0);
            if let Some(message) = Message::from_bytes(&bytes) {
                // What lies behind the fields nobody looks at.
                assert_eq!(message.to_bytes()[..56], bytes[..56]);
                understood += 1;
            }
        }
        assert!((20_000..180_000).contains(&understood), "{understood}");
    }
}
