//! Records between two processes of one host: of a meeting, and later of the link's control socket.
//!
//! One record is one message of a `SOCK_SEQPACKET` socket, at most with one descriptor. How they
//! are received is in `rendezvous::message`.

use core::mem::size_of;
use sluice_fabric::shm::Token;
use sluice_fabric::sys;
use sluice_runtime::{credentials, process};

/// First bytes of every record.
const MAGIC: u32 = u32::from_le_bytes(*b"slce");

/// Version of these records and of the meeting. Another one has other names.
pub const VERSION: u16 = sluice_stats::PROTOCOL;

/// Bytes of a record.
pub const LEN: usize = 96;

/// A number that is used once. All zero: none.
pub type Nonce = [u64; 2];

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Second comer to first: repeat this nonce.
    Challenge = 1,
    /// Either: I hold the other end.
    Claim = 2,
    /// First comer to second: I believe you; the stream's slot. With, for a new link, the arena.
    Reply = 3,
    /// Second comer to first, or the granted end to the granter: joined.
    Joined = 4,
    /// Either: no; `reason` says why.
    Decline = 5,
    /// Over a link: my socket of the connection `token[0]` waits for a stream.
    Ask = 6,
    /// Over a link: stream `index` for that connection.
    Grant = 7,
    /// Over a link: the socket that `mirror` of an Ask names is none of this process.
    NotMine = 8,
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

    /// Does the record prove identity? Then the effective user is sent as explicit credentials; the
    /// kernel's default is the real user.
    fn is_proof(self) -> bool {
        matches!(self, Kind::Claim | Kind::Ask | Kind::Grant | Kind::Joined)
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
    /// [`REUSE`].
    pub flags: u32,
    /// The sender's process; in Ask, Grant, NotMine and a Decline of an Ask the connection: its
    /// key, and the inode of the asker's end, in Grant of the granter's.
    pub token: Token,
    /// To be repeated.
    pub nonce: Nonce,
    /// The other end's, repeated.
    pub echo: Nonce,
    /// The sender's number of its TCP socket.
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

    /// Parses a record; `None` if it is none. The version may be another one: the caller declines.
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

/// Room for control messages, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
pub struct Control<const N: usize>(pub [u8; N]);

/// Bytes of a control message with a peer's credentials.
pub const CREDENTIALS: usize = space(size_of::<libc::ucred>());
const ONE_RIGHT: usize = space(size_of::<i32>());

/// `CMSG_SPACE`, which is no constant in C libraries.
pub const fn space(data_len: usize) -> usize {
    size_of::<libc::cmsghdr>() + data_len.next_multiple_of(size_of::<usize>())
}

/// Writes one control message at `at`; returns where the next goes.
///
/// # Safety
/// The buffer at `at` is aligned and large enough.
unsafe fn put_control<T>(at: *mut u8, kind: libc::c_int, data: &T) -> *mut u8 {
    let header = at.cast::<libc::cmsghdr>();
    // SAFETY: the caller's room; all fields are set before the kernel reads them.
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

/// Sends a record, never waiting, by `with` its descriptor.
///
/// # Errors
/// The kernel's; EAGAIN when the peer does not read, EPERM when it lets no descriptor in.
pub fn send(socket: i32, message: &Message, with: Option<i32>) -> Result<(), sys::Errno> {
    let mut bytes = message.to_bytes();
    let named = message.kind.is_proof().then(|| {
        let (uid, gid) = credentials::own_ids();
        let pid = process::pid() as i32;
        libc::ucred { pid, uid, gid }
    });
    send_bytes(socket, Some(&mut bytes), named, with)
}

/// Sends bytes so, and whom the sender names.
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
        // SAFETY: there is room for these and one more.
        end = unsafe { put_control(end, libc::SCM_CREDENTIALS, &named) };
    }
    if let Some(fd) = with {
        // SAFETY: as above.
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
    // SAFETY: the header and all it points to live until the call returns.
    unsafe { sys::sendmsg(socket, &raw const header, flags) }.map(drop)
}
