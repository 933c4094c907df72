//! Asking the kernel for the other end of a connection (`sock_diag(7)`).

use crate::message::{get, put};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::lock::{self, Guarded, OverFork};
use sluice_fabric::sys::{self, Fd};
use sluice_runtime::address::plain;
use sluice_runtime::own_fds;
use sluice_sockets::tcp;
use sluice_stats::Reason;

/// The socket at the other end of a connection, as this host's kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Inode of the other end's socket; never 0.
    pub inode: u64,
    /// The user that created or accepted the socket, or got it by `fchown`, by its number in this
    /// user namespace.
    pub uid: u32,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
/// `struct inet_diag_sockid`, `inet_diag_req_v2`, `inet_diag_msg` and `nlmsghdr` in bytes.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ANSWER: usize = 72;

/// States in which bytes can still pass: at most one end has sent its FIN.
const OPEN: [u8; 4] = [
    tcp::ESTABLISHED,
    tcp::FIN_WAIT1,
    tcp::FIN_WAIT2,
    tcp::CLOSE_WAIT,
];

/// Finds the socket whose own address is `peer` and whose peer is `local`.
///
/// # Errors
/// When this host (this network namespace) has no such socket that is open, with an owner:
/// [`Reason::PeerClosed`] if `peer` is an address of this host, else [`Reason::PeerRemote`].
/// [`Reason::NetlinkRefused`] when neither netlink nor /proc may be asked, [`Reason::PeerOwner`]
/// when the owner has no number here.
pub fn mirror(local: SocketAddr, peer: SocketAddr, looks: Looks) -> Result<Mirror, Reason> {
    let (local, peer) = (plain(local), plain(peer));
    let mirror = match by_netlink(local, peer, looks) {
        Err(Reason::NetlinkRefused) => by_proc(local, peer, looks),
        answer => answer,
    }?;
    if is_nobody(mirror.uid) {
        return Err(Reason::PeerOwner);
    }
    Ok(mirror)
}

/// How often the kernel is asked. `accept` changes a socket's owner first and its inode next, so
/// one query may return the new inode with the listener's owner. A second query then returns the
/// new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// For the mirror of an accepted end: a connecting socket, whose owner and inode do not change.
    Once,
    /// For the mirror of a connecting end: an accepted socket. Both answers must be the same.
    Twice,
}

impl Looks {
    fn at(self, mut look: impl FnMut() -> Result<Mirror, Reason>) -> Result<Mirror, Reason> {
        let first = look()?;
        if self == Looks::Twice && look()? != first {
            return Err(Reason::NotEstablished);
        }
        Ok(first)
    }
}

/// True if this number stands for all users that are not mapped in this user namespace.
fn is_nobody(uid: u32) -> bool {
    /// That number; `u64::MAX`: not read yet.
    static OVERFLOW: AtomicU64 = AtomicU64::new(u64::MAX);
    let mut overflow = OVERFLOW.load(Ordering::Relaxed);
    if overflow == u64::MAX {
        overflow = sys::number_in(c"/proc/sys/kernel/overflowuid").unwrap_or(65534);
        OVERFLOW.store(overflow, Ordering::Relaxed);
    }
    u64::from(uid) == overflow && !maps_everybody()
}

/// True if this user namespace has a number for every user (`user_namespaces(7)`: one line, which
/// spans all numbers).
fn maps_everybody() -> bool {
    sys::number_in(c"/proc/self/uid_map") == Some(u64::from(u32::MAX))
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The netlink socket of this process. It answers for the namespaces in which it was made.
static SOCKET: Guarded<Option<Fd>> = Guarded::of_order(lock::BEFORE_SOCKETS, None);

/// Closes the netlink socket, since the process changes its namespaces or is the child of a fork.
pub fn forget() {
    if let Some(mut kept) = SOCKET.lock()
        && let Some(fd) = kept.take()
    {
        own_fds::close(fd.release());
    }
}

/// Held over a fork.
pub(super) const HELD: &dyn OverFork = &SOCKET;

fn by_netlink(local: SocketAddr, peer: SocketAddr, looks: Looks) -> Result<Mirror, Reason> {
    const REFUSED: Reason = Reason::NetlinkRefused;
    // Fails in a handler that has interrupted such a question.
    let mut kept = SOCKET.lock().ok_or(REFUSED)?;
    let fd = match kept.take() {
        Some(fd) => fd,
        None => {
            let made = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG);
            own_fds::lift(made.map_err(|_| REFUSED)?).ok_or(REFUSED)?
        }
    };
    let family = if peer.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    } as u8;
    // nlmsghdr: length, type, flags, sequence, port.
    let mut request = [0u8; HEADER + REQUEST];
    put(&mut request, 0, &((HEADER + REQUEST) as u32).to_ne_bytes());
    put(&mut request, 4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&mut request, 6, &(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // inet_diag_req_v2: family, protocol, ext, pad, states, id.
    put(&mut request, 16, &[family, libc::IPPROTO_TCP as u8, 0, 0]);
    let states = OPEN.iter().fold(0u32, |all, state| all | 1 << state);
    put(&mut request, 20, &states.to_ne_bytes());
    put(&mut request, 24, &sockid(peer, local));
    let answer = looks.at(|| ask_netlink(&fd, &request, local, peer));
    // After a failure the answer may still arrive at the socket.
    if answer == Err(REFUSED) {
        own_fds::close(fd.release());
    } else {
        *kept = Some(fd);
    }
    answer
}

fn ask_netlink(
    fd: &Fd,
    request: &[u8],
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<Mirror, Reason> {
    const REFUSED: Reason = Reason::NetlinkRefused;
    // SAFETY: `request` is alive until the call returns.
    let sent = unsafe { sys::send(fd.raw(), request.as_ptr(), request.len(), 0) };
    sent.map_err(|_| REFUSED)?;
    // The kernel answers before `send` returns.
    let mut answer = [0u8; 512];
    // SAFETY: `answer` is alive until the call returns.
    let got = unsafe {
        sys::recv(
            fd.raw(),
            answer.as_mut_ptr(),
            answer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    let len = got.map_err(|_| REFUSED)?;
    let kind = u16::from_ne_bytes(get(&answer, 4));
    if kind == NLMSG_ERROR {
        let errno = -i32::from_ne_bytes(get(&answer, HEADER));
        return Err(if errno == libc::ENOENT {
            missing(local, peer)
        } else {
            REFUSED
        });
    }
    if kind != SOCK_DIAG_BY_FAMILY || len < HEADER + ANSWER {
        return Err(REFUSED);
    }
    // inet_diag_msg: family, state, timer, retrans, id, expires, rqueue, wqueue, uid, inode. For a
    // 4-tuple that is gone the kernel returns the listener, and for a closed socket inode 0: only
    // an exact answer counts.
    let [family, state] = get(&answer, HEADER);
    // The kernel returns addresses in the form of the socket's family, however they were asked for.
    let id = sockid(in_family(peer, family), in_family(local, family));
    let same = get::<36>(&answer, HEADER + 4) == get::<36>(&id, 0);
    let uid = u32::from_ne_bytes(get(&answer, HEADER + 64));
    let inode = u64::from(u32::from_ne_bytes(get(&answer, HEADER + 68)));
    match (same, OPEN.contains(&state), inode != 0) {
        (true, true, true) => Ok(Mirror { inode, uid }),
        // Not accepted yet, so that no process holds it; or both ends have sent their FIN.
        (true, _, false) if state == tcp::ESTABLISHED => Err(Reason::NotEstablished),
        (true, false, true) => Err(Reason::NotEstablished),
        _ => Err(missing(local, peer)),
    }
}

/// True if `peer` is surely on this host. A host that connects to an address of its own uses that
/// as the local address, too, unless the program has bound another.
pub(super) fn is_on_this_host(local: SocketAddr, peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip()
}

/// Why there is no socket of `peer`.
fn missing(local: SocketAddr, peer: SocketAddr) -> Reason {
    if is_on_this_host(local, peer) {
        Reason::PeerClosed
    } else {
        Reason::PeerRemote
    }
}

/// An address in the form of a socket's family: in an IPv6 socket IPv4 addresses are mapped.
fn in_family(addr: SocketAddr, family: u8) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(v4) if i32::from(family) == libc::AF_INET6 => {
            SocketAddr::new(v4.to_ipv6_mapped().into(), addr.port())
        }
        _ => addr,
    }
}

/// `inet_diag_sockid`: ports, source, destination, interface, cookie (none).
fn sockid(source: SocketAddr, destination: SocketAddr) -> [u8; 48] {
    let mut id = [0u8; 48];
    put(&mut id, 0, &source.port().to_be_bytes());
    put(&mut id, 2, &destination.port().to_be_bytes());
    put(&mut id, 4, &address(source.ip()));
    put(&mut id, 20, &address(destination.ip()));
    put(&mut id, 40, &[0xff; 8]);
    id
}

/// As `by_netlink`, from /proc/net/tcp and tcp6, where netlink is refused.
fn by_proc(local: SocketAddr, peer: SocketAddr, looks: Looks) -> Result<Mirror, Reason> {
    looks.at(|| read_proc(local, peer))
}

fn read_proc(local: SocketAddr, peer: SocketAddr) -> Result<Mirror, Reason> {
    let mut asked = false;
    for (path, family6) in [(c"/proc/net/tcp", false), (c"/proc/net/tcp6", true)] {
        if !family6 && peer.is_ipv6() {
            continue;
        }
        let Ok(fd) = sys::open(path, libc::O_RDONLY) else {
            continue;
        };
        asked = true;
        let wanted = [text(peer, family6), text(local, family6)];
        let mut lines = Lines::new(fd);
        while let Some(line) = lines.next_line() {
            // sl, local, remote, state, queues, timers, retransmits, uid, timeout, inode
            let mut words = line.split(|&b| b == b' ').filter(|w| !w.is_empty());
            let (_, own, remote, state) = (words.next(), words.next(), words.next(), words.next());
            let fits = own == Some(wanted[0].as_bytes()) && remote == Some(wanted[1].as_bytes());
            let open = |state: &[u8]| OPEN.iter().any(|&o| state == [b'0', b'0' + o]);
            if !fits || !state.is_some_and(open) {
                continue;
            }
            let number = |w: Option<&[u8]>| core::str::from_utf8(w?).ok()?.parse::<u32>().ok();
            let uid = number(words.nth(3));
            let inode = number(words.nth(1)).unwrap_or(0);
            if let (Some(uid), 1..) = (uid, inode) {
                let inode = u64::from(inode);
                return Ok(Mirror { inode, uid });
            }
        }
    }
    Err(if asked {
        missing(local, peer)
    } else {
        Reason::NetlinkRefused
    })
}

/// An address as /proc/net/tcp writes it: words in host order, hexadecimal.
fn text(addr: SocketAddr, family6: bool) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let octets: Vec<u8> = match (addr.ip(), family6) {
        (IpAddr::V4(v4), false) => v4.octets().to_vec(),
        (IpAddr::V4(v4), true) => v4.to_ipv6_mapped().octets().to_vec(),
        (IpAddr::V6(v6), _) => v6.octets().to_vec(),
    };
    for word in octets.chunks_exact(4) {
        let word: [u8; 4] = word.try_into().unwrap_or([0; 4]);
        let _ = write!(out, "{:08X}", u32::from_ne_bytes(word));
    }
    let _ = write!(out, ":{:04X}", addr.port());
    out
}

/// Lines of a file, through a fixed buffer.
struct Lines {
    fd: Fd,
    buffer: [u8; 4096],
    start: usize,
    end: usize,
}

impl Lines {
    fn new(fd: Fd) -> Self {
        Self {
            fd,
            buffer: [0; 4096],
            start: 0,
            end: 0,
        }
    }

    /// The next whole line; `None` at the end of the file.
    fn next_line(&mut self) -> Option<&[u8]> {
        loop {
            let held = self.buffer.get(self.start..self.end)?;
            if let Some(len) = held.iter().position(|&b| b == b'\n') {
                let at = self.start;
                self.start += len + 1;
                return self.buffer.get(at..at + len);
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let free = self.buffer.get_mut(self.end..)?;
            let n = sys::read(self.fd.raw(), free).ok().filter(|&n| n != 0)?;
            self.end += n;
        }
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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// Both ends of a connection, the connecting one first, with its address and its peer's.
    fn connection(host: &str) -> (TcpStream, TcpStream, SocketAddr, SocketAddr) {
        let listener = TcpListener::bind(host).unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        let (la, pa) = (a.local_addr().unwrap(), a.peer_addr().unwrap());
        (a, b, la, pa)
    }

    fn inode(fd: &impl AsRawFd) -> u64 {
        sys::fstat(fd.as_raw_fd()).unwrap().st_ino
    }

    #[test]
    fn both_ends_find_each_other_by_netlink_and_by_proc() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let (a, b, la, pa) = connection(host);
            for find in [by_netlink, by_proc, mirror] {
                assert_eq!(find(la, pa, Looks::Twice).unwrap().inode, inode(&b));
                assert_eq!(find(pa, la, Looks::Once).unwrap().inode, inode(&a));
            }
        }
    }

    #[test]
    fn the_owner_is_told_as_long_as_he_has_a_number() {
        let (_a, b, la, pa) = connection("127.0.0.1:0");
        // SAFETY: has no arguments and no effect.
        let own = unsafe { libc::geteuid() };
        for find in [by_netlink, by_proc, mirror] {
            assert_eq!(find(la, pa, Looks::Twice).unwrap().uid, own);
        }
        if own != 0 {
            return;
        }
        // SAFETY: changes the owner of a socket of this test.
        let given = unsafe { libc::fchown(b.as_raw_fd(), 4711, 4711) };
        assert_eq!(given, 0);
        for find in [by_netlink, by_proc, mirror] {
            assert_eq!(find(la, pa, Looks::Twice).unwrap().uid, 4711);
        }
        // SAFETY: the child only makes system calls and exits.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                // No user has a number in a new user namespace.
                forget();
                let ok = libc::unshare(libc::CLONE_NEWUSER) == 0
                    && mirror(la, pa, Looks::Twice) == Err(Reason::PeerOwner);
                libc::_exit(i32::from(!ok));
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn a_v4_mapped_end_finds_its_v4_peer() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let a = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (b, _) = listener.accept().unwrap();
        let (la, pa) = (a.local_addr().unwrap(), a.peer_addr().unwrap());
        let (lb, pb) = (b.local_addr().unwrap(), b.peer_addr().unwrap());
        assert!(lb.is_ipv6());
        for find in [mirror, |l, p, looks| by_proc(plain(l), plain(p), looks)] {
            assert_eq!(find(lb, pb, Looks::Once).unwrap().inode, inode(&a));
            assert_eq!(find(la, pa, Looks::Twice).unwrap().inode, inode(&b));
        }
    }

    #[test]
    fn both_ends_of_a_half_closed_connection_find_each_other() {
        let (a, b, la, pa) = connection("127.0.0.1:0");
        b.shutdown(std::net::Shutdown::Write).unwrap();
        for find in [by_netlink, by_proc, mirror] {
            assert_eq!(find(la, pa, Looks::Twice).unwrap().inode, inode(&b));
            assert_eq!(find(pa, la, Looks::Once).unwrap().inode, inode(&a));
        }
    }

    #[test]
    fn a_dead_connection_has_no_mirror() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (la, pa) = (a.local_addr().unwrap(), a.peer_addr().unwrap());
        assert_eq!(
            mirror(la, pa, Looks::Twice),
            Err(Reason::NotEstablished),
            "not accepted yet: no owner"
        );
        let (b, _) = listener.accept().unwrap();
        drop(b);
        assert_eq!(mirror(la, pa, Looks::Twice), Err(Reason::PeerClosed));
    }

    #[test]
    fn whose_peer_is_missing_is_told_by_its_address() {
        for (local, peer, reason) in [
            ("127.0.0.1:1", "127.0.0.2:2", Reason::PeerClosed),
            ("[::1]:1", "[::1]:2", Reason::PeerClosed),
            (
                "[::ffff:127.0.0.1]:1",
                "[::ffff:127.0.0.1]:2",
                Reason::PeerClosed,
            ),
            ("192.0.2.1:1", "192.0.2.1:2", Reason::PeerClosed),
            ("192.0.2.1:1", "192.0.2.2:2", Reason::PeerRemote),
            ("[2001:db8::1]:1", "[2001:db8::2]:2", Reason::PeerRemote),
        ] {
            let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
            for find in [mirror, |l, p, looks| by_proc(plain(l), plain(p), looks)] {
                assert_eq!(
                    find(local, peer, Looks::Twice),
                    Err(reason),
                    "{local} {peer}"
                );
            }
        }
    }
}
