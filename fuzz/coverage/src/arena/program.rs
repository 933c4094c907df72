//! The program's calls, as hooks make them, and what they may come to.

use super::*;
use sluice_engine::api::{self, Error, IoWait, Pass, READ, Verdict, WaitState};

/// What the real function says, as the engine's verdicts do.
pub(super) fn real(ret: isize) -> isize {
    if ret < 0 { -1 } else { ret }
}

/// As a hook ends a call that may not wait.
pub(super) fn concluded(verdict: Verdict, call: impl FnOnce() -> isize) -> isize {
    match verdict {
        Verdict::Done(ret) => ret,
        Verdict::Failed(error) => {
            assert_ne!(error, Error::Kernel(0));
            -1
        }
        Verdict::Pass(pass) => finished(pass, call()),
        Verdict::Block => panic!("a call that may not wait waits"),
    }
}

fn finished(pass: Pass, ret: isize) -> isize {
    if !pass.is_nobodys() {
        api::finish(pass, ret);
    }
    ret
}

impl World {
    pub(super) fn receives(&mut self, once: &mut Once, input: &mut Input<'_>) {
        let Some(entry) = api::lookup(self.fd).filter(|_| self.is_open) else {
            return;
        };
        const FLAGS: [i32; 8] = [
            0,
            READ,
            libc::MSG_PEEK,
            libc::MSG_TRUNC,
            libc::MSG_WAITALL,
            libc::MSG_PEEK | libc::MSG_WAITALL,
            libc::MSG_DONTWAIT,
            libc::MSG_OOB,
        ];
        let flags = FLAGS[input.below(FLAGS.len())];
        let want = if input.chance() {
            usize::from(input.half())
        } else {
            usize::from(input.byte())
        };
        // One buffer, or two that lie apart.
        let cut = if input.chance() { want } else { want / 3 };
        let beside = [0..32, 32 + cut..64 + cut, 64 + want..128 + want];
        once.buffer[..128 + want].fill(UNWRITTEN);
        for part in beside.clone() {
            once.buffer[part].fill(CANARY);
        }
        let start = once.buffer.as_mut_ptr();
        // SAFETY: inside the buffer, which is longer than `ROOM` by more than what is left free
        // here.
        let iov = unsafe {
            [
                libc::iovec {
                    iov_base: start.add(32).cast(),
                    iov_len: cut,
                },
                libc::iovec {
                    iov_base: start.add(64 + cut).cast(),
                    iov_len: want - cut,
                },
            ]
        };
        let count = if cut == want { 1 } else { 2 };
        let mut io_wait = IoWait::new();
        // SAFETY: buffers of ours.
        let verdict =
            unsafe { api::recv(entry, self.fd, iov.as_ptr(), count, flags, &mut io_wait) };
        let fd = self.fd;
        let got = concluded(verdict, || {
            let mut msg = message(&iov[..count]);
            // SAFETY: as above.
            real(unsafe { libc::recvmsg(fd, &raw mut msg, flags & !READ | libc::MSG_DONTWAIT) })
        });
        assert!(
            got <= want as isize || flags & libc::MSG_TRUNC != 0,
            "more than was asked for"
        );
        let untouched =
            |part: std::ops::Range<usize>| once.buffer[part].iter().all(|b| *b == CANARY);
        assert!(
            beside.into_iter().all(untouched),
            "written beside the buffer"
        );
        if got > 0 && flags & (libc::MSG_TRUNC | libc::MSG_OOB) == 0 {
            let both = (32..32 + cut)
                .chain(64 + cut..64 + want)
                .take(got as usize)
                .map(|at| once.buffer[at]);
            self.assert_were_peers(both);
        }
    }

    /// Each byte has come from where the peer can put bytes.
    fn assert_were_peers(&self, bytes: impl Iterator<Item = u8>) {
        let mut before = None;
        for byte in bytes {
            if RING.contains(&byte) && !self.is_spoilt {
                let follows = before.is_none_or(|b| byte == b % 61 + 1 || byte == 1);
                assert!(
                    follows,
                    "{before:?} and {byte} do not follow each other in the ring"
                );
                before = Some(byte);
                continue;
            }
            before = None;
            let known = TCP.contains(&byte)
                || OFFERED.contains(&byte)
                || RING.contains(&byte)
                || byte == 0 && self.is_spoilt
                || self.names_any_address;
            assert!(known, "{byte} is no byte of the peer's");
        }
    }

    pub(super) fn sends(&mut self, once: &Once, input: &mut Input<'_>) {
        let Some(entry) = api::lookup(self.fd).filter(|_| self.is_open) else {
            return;
        };
        const FLAGS: [i32; 5] = [
            0,
            libc::MSG_MORE,
            libc::MSG_DONTWAIT,
            libc::MSG_OOB,
            libc::MSG_NOSIGNAL,
        ];
        let flags = FLAGS[input.below(FLAGS.len())];
        let len = if input.chance() {
            usize::from(input.half())
        } else {
            usize::from(input.byte())
        };
        let cut = if input.chance() { len } else { len / 3 };
        let start = once.sent.as_ptr().cast_mut();
        // SAFETY: inside what there is to send, which is longer than any `half`.
        let iov = unsafe {
            [
                libc::iovec {
                    iov_base: start.cast(),
                    iov_len: cut,
                },
                libc::iovec {
                    iov_base: start.add(cut).cast(),
                    iov_len: len - cut,
                },
            ]
        };
        let count = if cut == len { 1 } else { 2 };
        let mut io_wait = IoWait::new();
        // SAFETY: buffers of ours.
        let verdict =
            unsafe { api::send(entry, self.fd, iov.as_ptr(), count, flags, &mut io_wait) };
        let fd = self.fd;
        let done = concluded(verdict, || {
            let msg = message(&iov[..count]);
            // SAFETY: as above.
            real(unsafe {
                libc::sendmsg(
                    fd,
                    &raw const msg,
                    flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            })
        });
        assert!(done <= len as isize, "more was sent than there is");
    }

    pub(super) fn sends_file(&mut self, once: &Once, input: &mut Input<'_>) {
        let Some(entry) = api::lookup(self.fd).filter(|_| self.is_open) else {
            return;
        };
        let mut offset = i64::from(input.half());
        let count = usize::from(input.half());
        let before = offset;
        // As every sendfile to a pipe that is broken it raises the signal; nothing else here may.
        // SAFETY: no handler.
        let handler = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        // SAFETY: an offset of ours.
        let verdict =
            unsafe { api::sendfile(entry, self.fd, once.file.raw(), &raw mut offset, count) };
        let (fd, file) = (self.fd, once.file.raw());
        let done = concluded(verdict, || {
            // SAFETY: as above.
            real(unsafe { libc::sendfile(fd, file, &raw mut offset, count) })
        });
        // SAFETY: as it was.
        unsafe { libc::signal(libc::SIGPIPE, handler) };
        assert!(done <= count as isize);
        assert!(offset >= before && offset - before <= count as i64);
    }

    pub(super) fn polls(&mut self, input: &mut Input<'_>) {
        let events =
            input.half() as i16 & (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI);
        let of = |fd| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut list = [
            of(if self.is_open { self.fd } else { -1 }),
            of(self.memory.raw()),
            of(self.set),
        ];
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut wait_state = WaitState::new();
        let at = list.as_mut_ptr();
        // SAFETY: a list and a time of ours.
        let verdict =
            unsafe { api::poll(at, 3, &raw const now, std::ptr::null(), &mut wait_state) };
        // SAFETY: as above.
        let count = concluded(verdict, || real(unsafe { libc::poll(at, 3, 0) } as isize));
        assert!((0..=3).contains(&count));
        let told = list.iter().filter(|of| of.revents != 0).count();
        assert_eq!(told as isize, count);
        let more = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        assert!(list.iter().all(|of| of.revents & !(of.events | more) == 0));
    }

    pub(super) fn waits(&mut self, input: &mut Input<'_>) {
        let most = 1 + input.below(4);
        let blank = libc::epoll_event {
            events: 0,
            u64: u64::MAX,
        };
        let mut events = [blank; 5];
        let at = events.as_mut_ptr();
        let set = self.set;
        // SAFETY: room for so many events.
        let real = || real(unsafe { libc::epoll_wait(set, at, most as i32, 0) } as isize);
        let count = if let Some(plain) = api::plain(set) {
            let got = real();
            if plain.is_still() {
                got
            } else {
                // SAFETY: the kernel has filled so many.
                concluded(
                    unsafe { api::epoll_after_plain_poll(plain, at, got as i32) },
                    || got,
                )
            }
        } else if let Some(entry) = api::lookup(set) {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let none = std::ptr::null();
            let mut wait_state = WaitState::new();
            // SAFETY: as above.
            let verdict = unsafe {
                api::epoll_wait(
                    entry,
                    set,
                    at,
                    most as i32,
                    &raw const now,
                    none,
                    &mut wait_state,
                )
            };
            concluded(verdict, real)
        } else {
            real()
        };
        assert!((0..=most as isize).contains(&count));
        for event in events.iter().take(count as usize) {
            let (data, events) = (event.u64, event.events);
            assert!(
                (7..=self.data).contains(&data),
                "an event of nobody's: {data:#x}"
            );
            assert_ne!(events, 0);
        }
        for event in events.iter().skip(most) {
            let data = event.u64;
            assert_eq!(data, u64::MAX, "written beside the events");
        }
    }

    pub(super) fn shuts(&mut self, input: &mut Input<'_>) {
        let Some(entry) = api::lookup(self.fd).filter(|_| self.is_open) else {
            return;
        };
        let how = [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR][input.below(3)];
        let fd = self.fd;
        // SAFETY: no pointers.
        concluded(api::shutdown(entry, fd, how), || {
            real(unsafe { libc::shutdown(fd, how) } as isize)
        });
    }

    pub(super) fn options(&mut self, input: &mut Input<'_>) {
        let Some(entry) = api::lookup(self.fd).filter(|_| self.is_open) else {
            return;
        };
        let fd = self.fd;
        if input.chance() {
            let mut n = 0i32;
            let request = [libc::FIONREAD, libc::TIOCOUTQ, libc::FIONBIO][input.below(3)];
            if request == libc::FIONBIO {
                n = 1;
            }
            let at = (&raw mut n) as usize;
            // SAFETY: a number of ours.
            let verdict = unsafe { api::ioctl(entry, fd, request, at) };
            // SAFETY: as above.
            concluded(verdict, || {
                real(unsafe { libc::ioctl(fd, request, at) } as isize)
            });
            assert!(n >= 0, "{n} bytes");
            return;
        }
        let (level, name) = [
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
            (libc::SOL_SOCKET, libc::SO_SNDBUF),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, libc::TCP_CORK),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE),
        ][input.below(5)];
        let value = i32::from(input.half());
        let (at, len) = ((&raw const value).cast(), 4);
        // SAFETY: a number of ours.
        unsafe {
            api::before_setsockopt(entry, fd, level, name, at, len);
            if libc::setsockopt(fd, level, name, at, len) == 0 {
                api::after_setsockopt(fd, level, name, at);
            }
        }
    }

    /// A copy, which goes again at once.
    pub(super) fn copies(&mut self) {
        if !self.is_open {
            return;
        }
        // SAFETY: no pointers.
        let copy = unsafe { libc::fcntl(self.fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy >= 0 {
            api::duped(self.fd, copy);
            closes(copy);
        }
    }
}

fn message(iov: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: zeroes are a valid header.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    msg
}
