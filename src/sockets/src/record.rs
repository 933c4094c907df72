//! Records between two processes of one host: those of a meeting, and those on a link's control
//! socket.
//!
//! A record is one message of a `SOCK_SEQPACKET` socket, with at most one descriptor.
//! `rendezvous::message` receives them.

use core::mem::size_of;
use sluice_fabric::shm::Token;
use sluice_fabric::sys;
use sluice_runtime::{credentials, process};

/// The first bytes of every record.
const MAGIC: u32 = u32::from_le_bytes(*b"slce");

/// Version of the records and of the meeting. Processes of another version use other names.
pub const VERSION: u16 = sluice_stats::PROTOCOL;

/// Bytes of a record.
pub const LEN: usize = 96;

/// A number used once; all zeroes: none.
pub type Nonce = [u64; 2];

/// What a record says. "First" and "second" are the ends in the order in which they came to the
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Second to first: repeat this nonce.
    Challenge = 1,
    /// Either: I hold the other end.
    Claim = 2,
    /// First to second: accepted; the stream's slot. For a new link also the arena.
    Reply = 3,
    /// Second to first, or the granted end to the granter: joined.
    Joined = 4,
    /// Either: refused; `reason` says why.
    Decline = 5,
    /// Over a link: my socket of the connection `token[0]` waits for a stream.
    Ask = 6,
    /// Over a link: stream `index` for that connection.
    Grant = 7,
    /// Over a link: the socket that `mirror` of an Ask names is not this process's.
    NotMine = 8,
    /// My waiter slot `index` needs a doorbell.
    WantBell = 16,
    /// Here is the peer's end of the doorbell for your slot `index`.
    Bell = 17,
    /// Your slot `index` sleeps, and I have no doorbell for it.
    Wake = 18,
    /// Look at the words of stream `index`.
    Attention = 19,
    /// My waiter slot `index` is gone: close its doorbell.
    DropBell = 20,
}

impl Kind {
    fn from_u16(n: u16) -> Option<Self> {
        [
            Kind::Challenge,
            Kind::Claim,
            Kind::Reply,
            Kind::Joined,
            Kind::Decline,
            Kind::Ask,
            Kind::Grant,
            Kind::NotMine,
            Kind::WantBell,
            Kind::Bell,
            Kind::Wake,
            Kind::Attention,
            Kind::DropBell,
        ]
        .into_iter()
        .find(|&k| k as u16 == n)
    }

    /// Returns whether the record proves identity. Then the effective user is sent as explicit
    /// credentials, since the kernel's default is the real user.
    fn is_proof(self) -> bool {
        matches!(self, Kind::Claim | Kind::Ask | Kind::Grant | Kind::Joined)
    }
}

/// A record. Fields that its kind does not use are zero.
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
    /// [`REUSE`].
    pub flags: u32,
    /// The sender's process. In Ask, Grant, NotMine and a Decline of an Ask: the connection's key,
    /// and the inode of the asker's end (in Grant: the granter's).
    pub token: Token,
    /// A nonce for the receiver to repeat.
    pub nonce: Nonce,
    /// The receiver's nonce, repeated.
    pub echo: Nonce,
    /// The sender's descriptor number of its TCP socket.
    pub descriptor: u32,
    /// In Ask: the inode of the other end.
    pub mirror: u64,
}

/// Bit of [`Message::flags`] in a Reply: use the link that both have.
pub const REUSE: u32 = 1;

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
            nonce: [0; 2],
            echo: [0; 2],
            descriptor: 0,
            mirror: 0,
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
    /// | 40..56 | nonce |
    /// | 56..72 | echo |
    /// | 72..76 | descriptor |
    /// | 76..84 | mirror |
    /// | 84..96 | zero |
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
        for half in [self.token, self.nonce, self.echo].as_flattened() {
            put(&half.to_le_bytes());
        }
        put(&self.descriptor.to_le_bytes());
        put(&self.mirror.to_le_bytes());
        bytes
    }

    /// Parses a record; `None` if it is malformed. The version may differ: then the caller
    /// declines.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
            bytes.get(at..at + N)?.try_into().ok()
        }
        fn pair(bytes: &[u8], at: usize) -> Option<[u64; 2]> {
            Some([
                u64::from_le_bytes(part(bytes, at)?),
                u64::from_le_bytes(part(bytes, at + 8)?),
            ])
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
            token: pair(bytes, 24)?,
            nonce: pair(bytes, 40)?,
            echo: pair(bytes, 56)?,
            descriptor: u32::from_le_bytes(part(bytes, 72)?),
            mirror: u64::from_le_bytes(part(bytes, 76)?),
        })
    }
}

/// Room for control messages, aligned for `cmsghdr`.
#[repr(C, align(8))]
pub struct Control<const N: usize>(pub [u8; N]);

/// Bytes of a control message with a peer's credentials.
pub const CREDENTIALS: usize = space(size_of::<libc::ucred>());
const ONE_RIGHT: usize = space(size_of::<i32>());

/// `CMSG_SPACE`, which C libraries do not have as a constant.
pub const fn space(data_len: usize) -> usize {
    size_of::<libc::cmsghdr>() + data_len.next_multiple_of(size_of::<usize>())
}

/// Writes one control message at `at`; returns where the next goes.
///
/// # Safety
/// At `at` there is room for the message, aligned for `cmsghdr`.
unsafe fn put_control<T>(at: *mut u8, kind: libc::c_int, data: &T) -> *mut u8 {
    let header = at.cast::<libc::cmsghdr>();
    // SAFETY: the caller guarantees the room; all fields are set before the kernel reads them.
    unsafe {
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = size_of::<libc::cmsghdr>() + size_of::<T>();
        core::ptr::copy_nonoverlapping(
            core::ptr::from_ref(data).cast::<u8>(),
            at.add(size_of::<libc::cmsghdr>()),
            size_of::<T>(),
        );
        at.add(space(size_of::<T>()))
    }
}

/// Sends a record, with a descriptor if `with`. Never waits.
///
/// # Errors
/// The kernel's: EAGAIN if the peer does not read, EPERM if the peer accepts no descriptor.
pub fn send(socket: i32, message: &Message, with: Option<i32>) -> Result<(), sys::Errno> {
    let mut bytes = message.to_bytes();
    let named = message.kind.is_proof().then(|| {
        let (uid, gid) = credentials::own_ids();
        let pid = process::pid() as i32;
        libc::ucred { pid, uid, gid }
    });
    send_bytes(socket, Some(&mut bytes), named, with)
}

/// Sends bytes like [`send`], with the credentials `named`.
///
/// # Errors
/// As [`send`].
pub fn send_bytes(
    socket: i32,
    bytes: Option<&mut [u8]>,
    named: Option<libc::ucred>,
    with: Option<i32>,
) -> Result<(), sys::Errno> {
    let bytes = bytes.unwrap_or_default();
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0u8; CREDENTIALS + ONE_RIGHT]);
    let begin = control.0.as_mut_ptr();
    let mut end = begin;
    if let Some(named) = named {
        // SAFETY: `control` has room for credentials and one descriptor.
        end = unsafe { put_control(end, libc::SCM_CREDENTIALS, &named) };
    }
    if let Some(fd) = with {
        // SAFETY: `control` has room for one descriptor after the credentials.
        end = unsafe { put_control(end, libc::SCM_RIGHTS, &fd) };
    }
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_controllen = end.addr() - begin.addr();
    if header.msg_controllen != 0 {
        header.msg_control = begin.cast();
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header and everything it points to live until the call returns.
    unsafe { sys::sendmsg(socket, &raw const header, flags) }.map(drop)
}
