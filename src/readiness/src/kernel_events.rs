//! Corrects what the kernel says of a TCP socket whose bytes travel on a link.
//!
//! Two kinds of events must not reach the program as they are. Both are settled here first, and
//! then the kernel is asked again.
//!
//! - Between hosts TCP carries the peer's record, 40 bytes of this library. A program that was told
//!   of something to read would find nothing, and with a blocking socket would sleep. So the record
//!   is read out of TCP.
//! - Where TCP would have reset the connection, the library makes the reset, in two steps. A
//!   program must not see the first step alone, so the second is waited for.
//!
//! Another thread may have read the record after the kernel told of it, and may even have ended the
//! stream. So each look notes its [`Moment`], and asks again if a record was read since.

use core::sync::atomic::Ordering;
use libc::c_short;
use sluice_fabric::sys;
use sluice_sockets::emulated_reset::{self, Resetting};
use sluice_sockets::events::kernel_ready;
use sluice_sockets::socket::Socket;
use sluice_sockets::{carrier, peer_end, tcp};
use sluice_transport::links;

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
pub(super) const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// When a look at the kernel began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// [`carrier::records_removed`] by then.
    records: u64,
}

impl Moment {
    /// A look whose beginning was not noted: a record may have been read since.
    pub const fn unknown() -> Self {
        Self { records: 0 }
    }

    /// The look begins.
    #[inline]
    pub fn now() -> Self {
        Self {
            records: carrier::records_removed(),
        }
    }

    /// Was a record read from the socket's TCP since?
    fn is_before_record(self, sock: &Socket) -> bool {
        sock.heard.load(Ordering::SeqCst) > self.records
    }
}

/// Can the kernel's events of a socket without a stream need a correction?
#[inline]
pub(super) fn is_any_other() -> bool {
    links::are_driven() || emulated_reset::is_any()
}

/// May these events come from a record or from a reset?
#[inline]
pub(super) fn is_of_interest(told: c_short) -> bool {
    told & (READ | libc::POLLHUP | libc::POLLRDHUP) != 0
}

/// May the kernel show a FIN where TCP alone would have reset the connection? It does where the
/// peer within the host was killed with bytes unread in a ring. A peer that ends its side itself
/// says so on the link before.
fn may_be_reset(sock: &Socket, told: c_short) -> bool {
    // A FIN leads to CLOSE_WAIT. A reading half that this side has shut shows an end in any state.
    let is_of_peer =
        || tcp::state(sock.fd.load(Ordering::Relaxed)).is_none_or(|s| s == tcp::CLOSE_WAIT);
    told & (READ | libc::POLLRDHUP) != 0
        && told & libc::POLLHUP == 0
        && !sock.carrier().ends_by_record
        && peer_end::is_unended(sock)
        && is_of_peer()
}

/// Must the program not see as it is what the kernel `told` of the socket, in a look that began at
/// `since`?
pub(super) fn is_doubtful(sock: &Socket, told: c_short, since: Moment) -> bool {
    let record = carrier::reads_link(sock) || since.is_before_record(sock) || is_low_changed(sock);
    // Of a reset made since the look, the kernel can have told the end alone, or what came before.
    let is_reset = || is_of_interest(told) && emulated_reset::resetting(sock) != Resetting::None;
    told & READ != 0 && record || may_be_reset(sock, told) || is_reset()
}

/// What the program is to see of `told`, the kernel's answer when it was `asked` for these events.
/// Called under no lock. Events that come from no record and no reset stay: they may be of another
/// socket with the same data.
pub(super) fn correct(
    sock: &'static Socket,
    told: c_short,
    asked: c_short,
    since: Moment,
) -> c_short {
    if !is_doubtful(sock, told, since) {
        return told;
    }
    let mut told = told;
    if may_be_reset(sock, told) && peer_end::end_is_told(sock) {
        told = kernel_ready(sock.fd.load(Ordering::Relaxed), asked);
    }
    let mut hides = carrier::hears(sock);
    emulated_reset::let_end(sock);
    if since.is_before_record(sock) || emulated_reset::resetting(sock) == Resetting::Made {
        // What was told of room stays: neither a record nor the first step of a reset is about it.
        let room = told & WRITE;
        loop {
            let heard = sock.heard.load(Ordering::SeqCst);
            let now = kernel_ready(sock.fd.load(Ordering::Relaxed), asked & !WRITE);
            told = now & !libc::POLLNVAL | room;
            hides = carrier::hides_tcp(sock);
            if hides || sock.heard.load(Ordering::SeqCst) == heard {
                break;
            }
            // Another thread has read a record that came after this look.
        }
    }
    if !sock.has_shut_reading() && (hides || is_below_low(sock)) {
        // A part of a record, or one that came since: the kernel tells when there is more.
        told &= !READ;
    }
    told
}

/// Does the kernel tell of the first byte although the program has set SO_RCVLOWAT higher? It does
/// while the library waits for a record, and a look that began before may still show that.
fn is_low_changed(sock: &Socket) -> bool {
    sock.rcvlowat.load(Ordering::Relaxed) > 1
        && (sock.low_held.load(Ordering::Relaxed) || sock.heard.load(Ordering::Relaxed) != 0)
}

/// Are fewer bytes unread than the program's SO_RCVLOWAT, and may more come?
fn is_below_low(sock: &Socket) -> bool {
    if !is_low_changed(sock) {
        return false;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // Where the library does not hold it low, the kernel's value is the program's, also in the
    // middle of a setsockopt.
    let low = if sock.low_held.load(Ordering::Acquire) {
        sock.rcvlowat.load(Ordering::Relaxed) as i32
    } else {
        sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1)
    };
    sys::ioctl_int(fd, libc::FIONREAD).is_ok_and(|unread| unread < low)
        && tcp::state(fd) == Some(tcp::ESTABLISHED)
}

/// Adds POLLRDHUP where the kernel shows a FIN so far only as something to read.
///
/// It does so for a moment (`tcp_data_queue`). A thread that sleeps in the kernel is woken after
/// it, but one that a doorbell woke may look in between. FIONREAD takes the socket's lock, so that
/// it returns after that moment.
pub(super) fn whole(sock: &Socket, told: c_short, asked: c_short) -> c_short {
    let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    if told & READ == 0 || told & ends != 0 || asked & libc::POLLRDHUP == 0 {
        return told;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if tcp::has_bytes(fd) {
        told
    } else {
        told | kernel_ready(fd, libc::POLLRDHUP)
    }
}

/// As [`correct`], where no socket may be locked: asks the kernel, and leaves out what is in doubt.
/// The kernel tells of that in its own time, and then it is corrected.
pub(super) fn ask(sock: &Socket, asked: c_short) -> c_short {
    let fd = sock.fd.load(Ordering::Relaxed);
    let far = sock.carrier().ends_by_record;
    // While the link is read, bytes on TCP are a record. Only a FIN, or this side's SHUT_RD, makes
    // the socket readable otherwise, and both show POLLRDHUP.
    let end = if far { libc::POLLRDHUP } else { 0 };
    let mut told = whole(sock, kernel_ready(fd, asked | end), asked);
    if is_of_interest(told) {
        match emulated_reset::resetting(sock) {
            Resetting::None => {}
            Resetting::Begun => told = 0,
            Resetting::Made => told = kernel_ready(fd, asked | end),
        }
    }
    if may_be_reset(sock, told) {
        told &= !(READ | libc::POLLRDHUP);
    }
    if far && told & libc::POLLRDHUP == 0 && carrier::reads_link(sock) {
        told &= !READ;
    }
    told & (asked | libc::POLLERR | libc::POLLHUP)
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests make real connections")]
mod tests {
    use super::*;
    use crate::set::{self, Set};
    use sluice_fabric::shm::Link;
    use sluice_fabric::sys;
    use sluice_runtime::fd_table::{self, Entry};
    use sluice_sockets::socket::{State, half};
    use sluice_sockets::testing;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;

    const DATA: u64 = 7;
    const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

    fn connection() -> (i32, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0.into_raw_fd(), peer)
    }

    fn set_of(sock: &'static Socket, events: u32) -> &'static Set {
        let set = set::alloc(sys::epoll_create().unwrap().release()).unwrap();
        let fd = sock.fd.load(Ordering::Relaxed);
        sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, events, DATA).unwrap();
        assert!(fd_table::store(fd, Entry::of(sock)));
        set.added(fd, sock, (events, DATA));
        set
    }

    /// What the kernel's set tells, its bells left out: at once, or waited for.
    fn kernel_tells(set: &Set, ms: u64) -> Vec<libc::epoll_event> {
        let mut all = [libc::epoll_event { events: 0, u64: 0 }; 4];
        loop {
            let time = sys::timespec(ms * 1_000_000);
            let (at, none) = (all.as_mut_ptr(), core::ptr::null());
            // SAFETY: an array and a time of ours.
            let got = unsafe { sys::epoll_wait(set.fd(), at, 4, Some(&time), none) }.unwrap();
            let told: Vec<_> = all[..got]
                .iter()
                .filter(|e| e.u64 == DATA)
                .copied()
                .collect();
            if got == 0 || !told.is_empty() {
                return told;
            }
        }
    }

    fn program_is_told(
        set: &'static Set,
        mut told: Vec<libc::epoll_event>,
        began: Moment,
    ) -> Vec<u32> {
        let len = told.len();
        let (count, _) = set.translate(&mut told, 0, len, began);
        told[..count].iter().map(|e| e.events).collect()
    }

    /// A connection that writes to a link, its stream there, and its other end.
    fn on_a_link() -> (&'static Socket, (&'static Link, u32), TcpStream) {
        let (fd, peer) = connection();
        let (link, other, index) = testing::link();
        let sock = testing::writer(link, other, index);
        sock.fd.store(fd, Ordering::Relaxed);
        (sock, (link, index), peer)
    }

    /// A connection in a set, whose stream is over; and its other end.
    fn behind_a_stream(events: u32) -> (&'static Socket, &'static Set, TcpStream) {
        let (sock, (link, index), peer) = on_a_link();
        let set = set_of(sock, events);
        sock.tx.state.put(State::Plain);
        set.forget_stream(sock, link, index);
        (sock, set, peer)
    }

    #[test]
    fn a_stream_that_ends_amid_an_answer_is_told_of_once() {
        let events = libc::EPOLLIN as u32;
        let (_, set, _peer) = behind_a_stream(events);
        // The ring has been told of, and then TCP has the rest.
        let mut all = [libc::epoll_event { events, u64: DATA }; 2];
        let (count, _) = set.translate(&mut all, 1, 2, Moment::now());
        assert_eq!(count, 1);
        assert_eq!({ all[0].events }, events);
    }

    #[test]
    fn room_of_tcp_that_comes_behind_the_switch_is_told() {
        let edge = (libc::EPOLLOUT | libc::EPOLLET) as u32;
        let (sock, _, mut peer) = on_a_link();
        let fd = sock.fd.load(Ordering::Relaxed);
        sock.tx.state.put(State::Proved);
        let set = set_of(sock, edge);
        let mut all = [libc::epoll_event { events: 0, u64: 0 }; 2];
        assert_eq!(
            set.collect_ready(&mut all),
            1,
            "there is room when it comes in"
        );
        let bytes = [0u8; 4096];
        // SAFETY: an array of that length.
        while unsafe { sys::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT) }.is_ok() {}
        assert!(kernel_tells(set, 0).is_empty());
        sock.tx.state.put(State::Link);
        let _ = peer.set_nonblocking(true);
        let mut waste = vec![0; 1 << 20];
        let told = loop {
            let _ = peer.read(&mut waste);
            let told = kernel_tells(set, 1);
            if !told.is_empty() {
                break told;
            }
        };
        let room = libc::EPOLLOUT as u32;
        assert_eq!(program_is_told(set, told, Moment::now()), [room]);
    }

    #[test]
    fn an_end_that_this_side_has_made_is_told_before_the_peer_has_read() {
        let (sock, (link, index), peer) = on_a_link();
        let fd = sock.fd.load(Ordering::Relaxed);
        sock.rx.set_dir(Some(&testing::directions(link, index)[1]));
        sock.rx.state.put(State::Link);
        sock.tx.at.store(1, Ordering::SeqCst);
        assert!(peer_end::is_unended(sock));
        sock.halves.store(half::READING, Ordering::Relaxed);
        sys::shutdown(fd, libc::SHUT_RD).unwrap();
        let end = libc::POLLIN | libc::POLLRDHUP;
        assert_eq!(ask(sock, end), end);
        // That of a killed peer will be a reset.
        drop(peer);
        while tcp::state(fd) != Some(tcp::CLOSE_WAIT) {
            std::thread::yield_now();
        }
        assert_eq!(ask(sock, end), 0);
    }

    #[test]
    fn of_the_middle_of_a_reset_nothing_is_told() {
        let asked = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        let (sock, set, _peer) = behind_a_stream(asked);
        let fd = sock.fd.load(Ordering::Relaxed);
        let _ = kernel_tells(set, 0);
        let all = asked | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        std::thread::scope(|scope| {
            sock.reset_seen.store(true, Ordering::SeqCst);
            emulated_reset::ANY.store(true, Ordering::SeqCst);
            let (begun, is_begun) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let _section = sock.rx.lock.enter().unwrap();
                // SAFETY: zeroes are a valid address; its family is AF_UNSPEC.
                let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
                sys::connect(fd, &nobody, size_of::<libc::sockaddr>()).unwrap();
                begun.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(100));
                let _ = sys::shutdown(fd, libc::SHUT_RDWR);
                sock.reset_made.store(true, Ordering::SeqCst);
            });
            is_begun.recv().unwrap();
            let began = Moment::now();
            let told = kernel_tells(set, 0);
            assert_eq!({ told[0].events } & READABLE, 0, "the window is there");
            assert_eq!(ask(sock, libc::POLLIN | libc::POLLOUT), 0);
            assert_eq!(program_is_told(set, told, began), [all]);
        });
        let asked = libc::POLLIN | libc::POLLRDHUP;
        assert_eq!(ask(sock, asked), all as i16);
        let told = correct(sock, libc::POLLHUP, asked, Moment::now());
        assert_eq!(told, all as i16);
    }

    mod records {
        use super::*;
        use crate::poll;
        use sluice_sockets::carrier;
        use sluice_transport::verbs::endpoint::Endpoint;
        use std::io::Write;

        struct Far {
            sock: &'static Socket,
            peer: TcpStream,
            link: &'static Link,
            index: u32,
        }

        /// A socket wholly on a link to another host, whose endpoint is not in service: nothing is
        /// heard.
        fn far() -> Far {
            let (sock, (link, index), peer) = on_a_link();
            let endpoint: &Endpoint = Box::leak(Box::new(Endpoint::new(|| ())));
            link.set_keeper(core::ptr::from_ref(endpoint) as usize);
            sock.rx.set_dir(Some(&testing::directions(link, index)[1]));
            sock.rx.state.put(State::Link);
            emulated_reset::ANY.store(true, Ordering::SeqCst);
            let far = Far {
                sock,
                peer,
                link,
                index,
            };
            assert!(carrier::reads_link(sock));
            far
        }

        impl Far {
            fn peer_writes(&mut self, bytes: &[u8]) {
                self.peer.write_all(bytes).unwrap();
                let fd = self.sock.fd.load(Ordering::Relaxed);
                let _ = sys::poll_one(fd, libc::POLLIN, None);
            }

            /// As another thread does that has heard the record.
            fn is_heard(&self, len: usize) {
                let mut gone = [0u8; 64];
                let fd = self.sock.fd.load(Ordering::Relaxed);
                // SAFETY: room of ours.
                let got = unsafe { sys::recv(fd, gone.as_mut_ptr(), len, libc::MSG_DONTWAIT) };
                assert_eq!(got, Ok(len));
                carrier::note_removed(self.sock);
                for half in [&self.sock.rx, &self.sock.tx] {
                    half.state.put(State::Plain);
                }
            }
        }

        const ASKED: [u32; 3] = [
            libc::EPOLLIN as u32,
            (libc::EPOLLIN | libc::EPOLLET) as u32,
            (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
        ];

        #[test]
        fn a_record_that_another_thread_hears_is_told_to_no_set() {
            for asked in ASKED {
                let mut far = far();
                let set = set_of(far.sock, asked);
                let began = Moment::now();
                far.peer_writes(&[0; 40]);
                // Two threads have it, as with a level.
                let told = kernel_tells(set, 1000);
                assert_eq!(told.len(), 1);
                far.is_heard(40);
                set.forget_stream(far.sock, far.link, far.index);
                for _ in 0..2 {
                    assert_eq!(program_is_told(set, told.clone(), began), [0u32; 0]);
                }
                // What comes then is told, also by a registration that tells once.
                let began = Moment::now();
                far.peer_writes(b"x");
                let told = kernel_tells(set, 1000);
                assert_eq!(program_is_told(set, told, began), [libc::EPOLLIN as u32]);
            }
        }

        #[test]
        fn a_record_that_is_not_heard_yet_is_told_to_no_set() {
            for asked in ASKED {
                let mut far = far();
                let set = set_of(far.sock, asked);
                let began = Moment::now();
                far.peer_writes(&[0; 5]);
                let told = kernel_tells(set, 1000);
                assert_eq!(program_is_told(set, told, began), [0u32; 0]);
                assert_eq!(ask(far.sock, libc::POLLIN), 0);
                far.is_heard(5);
                set.forget_stream(far.sock, far.link, far.index);
                let began = Moment::now();
                far.peer_writes(b"x");
                let told = kernel_tells(set, 1000);
                assert_eq!(program_is_told(set, told, began), [libc::EPOLLIN as u32]);
            }
        }

        #[test]
        fn a_record_that_another_thread_hears_is_told_to_no_list() {
            let mut far = far();
            let fd = far.sock.fd.load(Ordering::Relaxed);
            assert!(fd_table::store(fd, Entry::of(far.sock)));
            let began = Moment::now();
            far.peer_writes(&[0; 40]);
            far.is_heard(40);
            let mut list = [libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: libc::POLLIN,
            }];
            poll::correct(&mut list, began, false);
            assert_eq!(list[0].revents, 0);
            let began = Moment::now();
            far.peer_writes(b"x");
            list[0].revents = libc::POLLIN;
            poll::correct(&mut list, began, false);
            assert_eq!(list[0].revents, libc::POLLIN);
            fd_table::remove(fd);
        }

        #[test]
        fn an_end_is_told_beneath_a_link() {
            let far = far();
            let fd = far.sock.fd.load(Ordering::Relaxed);
            sys::shutdown(fd, libc::SHUT_RD).unwrap();
            assert_eq!(ask(far.sock, libc::POLLIN), libc::POLLIN);
            let told = correct(far.sock, libc::POLLIN, libc::POLLIN, Moment::now());
            assert_eq!(told, libc::POLLIN);
        }

        #[test]
        fn an_end_is_told_behind_a_part_of_a_record() {
            let mut far = far();
            far.peer_writes(&[0; 5]);
            let fd = far.sock.fd.load(Ordering::Relaxed);
            let correct = || correct(far.sock, libc::POLLIN, libc::POLLIN, Moment::now());
            assert_eq!(correct(), 0);
            far.sock.halves.store(half::READING, Ordering::Relaxed);
            sys::shutdown(fd, libc::SHUT_RD).unwrap();
            assert_eq!(correct(), libc::POLLIN);
        }

        #[test]
        fn what_is_told_under_the_same_data_of_another_stays() {
            let far = far();
            let set = set_of(far.sock, libc::EPOLLIN as u32);
            let event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: DATA,
            };
            let told = program_is_told(set, vec![event], Moment::now());
            assert_eq!(told, [libc::EPOLLIN as u32]);
        }
    }
}
