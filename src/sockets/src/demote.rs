//! Taking a stream back to TCP: from either end, at any moment, without a message and without
//! waiting.

use crate::family::Family;
use crate::remote::{self, Before};
use crate::sock::{Event, Half, Sock, State};
use crate::{after_tcp, direct, jobs, tell, trim, unread_copy, wake};
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::{sys, words};
use sluice_runtime::{process, seccomp};
use sluice_stats::Reason;

/// Which directions to demote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// What this end reads.
    Rx,
    /// What this end writes.
    Tx,
    /// Both.
    Both,
}

/// Where a re-send stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// All is on TCP; the half is Plain again.
    All,
    /// TCP has no room now.
    NoRoom,
    /// From another host: not before the link, or the peer, has told more.
    Held,
    /// A relative died while it was at it: bytes are lost, the connection must be reset.
    Lost,
}

/// Demotes. Idempotent. Returns at once; what TCP cannot take now is sent by the control thread.
pub fn demote(sock: &'static Sock, which: Which, reason: Reason) {
    if remote::is_remote(sock) && remote::demote(sock, reason) {
        return;
    }
    let is_on_link =
        |half: &Half| matches!(half.state(), State::Proved | State::Link | State::Inherited);
    if which != Which::Rx
        && sock.tx.state() != State::Plain
        && let Ok(_section) = sock.tx.lock.enter()
        && is_on_link(&sock.tx)
    {
        settle_tx(sock, reason);
    }
    if which != Which::Tx
        && sock.rx.state() != State::Plain
        && let Ok(_section) = sock.rx.lock.enter()
        && sock.rx.state() != State::Plain
    {
        settle_rx(sock, reason);
    }
}

/// Notes why, once per stream. Where the peer has taken it back, and has told why, that is noted.
pub fn count(sock: &Sock, reason: Reason) {
    if sock.counted.swap(true, Ordering::Relaxed) {
        return;
    }
    if reason != Reason::Idle {
        sock.backoff.fetch_add(1, Ordering::Relaxed);
    }
    let told = match reason {
        // Where the peer has left the stream first, its reason is the cause, and not that this end
        // closes after it.
        Reason::PeerDemoted | Reason::Close | Reason::Exit => reason_of_peer(sock),
        _ => None,
    };
    let reason = match reason {
        Reason::PeerDemoted => reason_of_relative(sock).unwrap_or(reason),
        _ => reason,
    };
    let conn = sock.conn();
    if !sock.upgraded.load(Ordering::Relaxed) {
        // The stream never carried a byte: the connection simply stays on TCP.
        return match told {
            Some(theirs) => conn.stays_for_peer(theirs),
            None => conn.stays(reason),
        };
    }
    conn.demoted(told.unwrap_or(reason), told.is_some());
    let whose = told.map_or("", |_| "the other end: ");
    sluice_runtime::config::log(
        sluice_runtime::config::Level::Info,
        format_args!(
            "fd {} back to TCP: {whose}{}",
            sock.fd.load(Ordering::Relaxed),
            told.unwrap_or(reason).words()
        ),
    );
}

/// What the peer has said when it took the stream back. Its word, for people alone.
fn reason_of_peer(sock: &Sock) -> Option<Reason> {
    let as_writer = sock.rx.dir().map(|dir| &dir.tx_wishes.why);
    let as_reader = sock.tx.dir().map(|dir| &dir.rx_wishes.why);
    first_told([as_writer, as_reader])
}

/// Why another process of this end, the parent or a child, has given the stream back. What became
/// of that process itself is no reason here: the stream was shared.
fn reason_of_relative(sock: &Sock) -> Option<Reason> {
    let as_writer = sock.tx.dir().map(|dir| &dir.tx_wishes.why);
    let as_reader = sock.rx.dir().map(|dir| &dir.rx_wishes.why);
    let told = first_told([as_writer, as_reader])?;
    let is_its_own = told.is_end() || told == Reason::Exec;
    Some(if is_its_own { Reason::Fork } else { told })
}

fn first_told(words: [Option<&AtomicU32>; 2]) -> Option<Reason> {
    let told = |why: &AtomicU32| Reason::from_u16(why.load(Ordering::Relaxed) as u16);
    let mut all = words.into_iter().flatten().filter_map(told);
    all.find(|reason| reason.is_told())
}

/// Tells the peer why this end takes the stream back, before it does.
fn tell_why(why: &AtomicU32, reason: Reason) {
    if reason != Reason::PeerDemoted {
        why.store(reason as u32, Ordering::Relaxed);
    }
}

/// This process is at a stream's words: its own, or one that it has inherited, and that the parent
/// does not give back meanwhile.
struct Visit(Option<&'static Family>);

impl Visit {
    /// Under the half's lock. `None`: the parent has left the stream, and what it had to send again
    /// has been sent. The half is on TCP.
    fn begin(sock: &'static Sock, half: &Half) -> Option<Self> {
        let visit = Self::meanwhile(sock, half);
        if visit.is_some() {
            return visit;
        }
        count(sock, Reason::Fork);
        if core::ptr::eq(half, &sock.rx) {
            // A writer that has reset the connection, or was killed, has sent nothing again.
            unread_copy::adopt(sock);
        }
        half.state.on(Event::ParentLeft);
        half.set_dir(None);
        leave(sock);
        None
    }

    /// The same without the half's lock. `None`: the parent has left the stream.
    fn meanwhile(sock: &'static Sock, half: &Half) -> Option<Self> {
        if half.state() != State::Inherited {
            return Some(Self(None));
        }
        let family = sock.family();
        // Made only where it is one: its end is told.
        family.is_some_and(Family::comes).then(|| Self(family))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(family) = self.0 {
            family.goes();
        }
    }
}

/// Under the rx lock, in any state but Plain: fixes the words and reads TCP from now on.
pub fn settle_rx(sock: &'static Sock, reason: Reason) {
    let Some(dir) = sock.rx.dir() else { return };
    if remote::is_remote(sock) {
        count(sock, reason);
        return remote::settle_rx(sock, reason);
    }
    let Some(_visit) = Visit::begin(sock, &sock.rx) else {
        return;
    };
    // After both shutdowns the peer sends nothing again. And a peer whose TCP ended before it took
    // the stream back was killed.
    let whole = match sock.rx.state() {
        State::Link => sock.unread_copy.will_be_whole() || is_left(sock),
        State::Inherited => is_left(sock),
        _ => false,
    };
    tell_why(&dir.rx_wishes.why, reason);
    let (start, end) = words::demote(&dir.tx.tail, &dir.rx.head);
    count(sock, reason);
    if start != end {
        let from = match sock.rx.state() {
            State::Link => sock.rx.kernel_bytes(),
            _ => dir.tx_wishes.from.load(Ordering::Relaxed),
        };
        if sock.rx.state() == State::Inherited {
            unread_copy::count_parents_reads(sock, from);
        }
        let owed = from.wrapping_add(end.wrapping_sub(start));
        unread_copy::keep(sock, (start, end), owed, whole);
    }
    sock.rx.state.on(Event::Settled);
    if let Some(link) = sock.link() {
        let index = sock.index.load(Ordering::Relaxed);
        wake::own_threads(link, dir.rx_wishes.waiters.load(Ordering::SeqCst), index);
        if start != end {
            // What the reader did not take is the writer's to send again; its process must hear of
            // it.
            tell::attention(link, index);
        }
    }
    sock.rx.set_dir(None);
    sock.conn().rx.holds_none();
    leave(sock);
}

/// True if the peer's FIN arrived before either end sealed this direction: the peer was killed, so
/// nobody will resend the unread bytes. A peer that lives seals before TCP has any of them. Of
/// relatives, which share this end, the first that finds it tells the others.
fn is_left(sock: &Sock) -> bool {
    if !unread_copy::has_ended(sock.fd.load(Ordering::Relaxed)) {
        return false;
    }
    let family = sock.family();
    if is_sealed(&sock.rx) {
        return family.is_some_and(Family::is_orphaned);
    }
    family.inspect(|family| family.orphan());
    true
}

/// Before a fork of a process that shares the socket with nobody. After both shutdowns the unread
/// bytes are nowhere but here, and the stream ends as soon as the peer writes: a copy is made now.
pub fn keep_for_child(sock: &'static Sock) {
    let is_only_here = sock.unread_copy.will_be_whole() && !remote::is_remote(sock);
    if is_only_here
        && let Ok(_section) = sock.rx.lock.enter()
        && sock.rx.state() == State::Link
    {
        settle_rx(sock, Reason::Fork);
    }
}

/// Has either end of the direction taken it back to TCP?
pub fn is_sealed(half: &Half) -> bool {
    half.dir()
        .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged)
}

/// Before this end's FIN, by whichever way its bytes go: tells the peer that this is no killed
/// process. Called after the shut half is noted, which a stream that comes up meanwhile looks at.
pub fn tell_end(sock: &'static Sock) {
    if remote::is_remote(sock) {
        return;
    }
    // Else a handler in the middle of this thread's own use of the half, which finds that as it
    // was.
    let section = sock.rx.lock.enter();
    let visit = if section.is_ok() {
        Visit::begin(sock, &sock.rx)
    } else {
        Visit::meanwhile(sock, &sock.rx)
    };
    if let Some(_visit) = visit
        && let Some(dir) = sock.rx.dir()
    {
        dir.rx_wishes.ended.store(1, Ordering::SeqCst);
    }
}

/// The peer may have taken the stream back to TCP, and nobody has looked at it here since: what it
/// does not send again is the copy's.
pub fn follow_rx(sock: &'static Sock) {
    if sock.rx.state() == State::Plain {
        return;
    }
    let Ok(_section) = sock.rx.lock.enter() else {
        return;
    };
    let on_link = matches!(
        sock.rx.state(),
        State::Link | State::Proved | State::Draining
    );
    if on_link && is_sealed(&sock.rx) {
        settle_rx(sock, Reason::PeerDemoted);
    }
}

/// As [`follow_rx`]: what the peer has not read goes by TCP.
pub fn follow_tx(sock: &'static Sock) {
    if sock.tx.state() == State::Plain {
        return;
    }
    let Ok(_section) = sock.tx.lock.enter() else {
        return;
    };
    if matches!(sock.tx.state(), State::Link | State::Proved) && is_sealed(&sock.tx) {
        settle_tx(sock, Reason::PeerDemoted);
    }
}

/// Under the tx lock, in state Proved, Link or Inherited: fixes the words and begins to send again
/// what the reader did not take.
pub fn settle_tx(sock: &'static Sock, reason: Reason) -> Resent {
    settle_tx_since(sock, reason, None)
}

/// The same, where a reader has shut both halves down: what was written from `since` on is to meet
/// its kernel.
pub fn settle_tx_since(sock: &'static Sock, reason: Reason, since: Option<u64>) -> Resent {
    let Some(dir) = sock.tx.dir() else {
        return Resent::All;
    };
    if remote::is_remote(sock) {
        count(sock, reason);
        return goes_on(sock, remote::settle_tx(sock, reason));
    }
    let Some(_visit) = Visit::begin(sock, &sock.tx) else {
        return Resent::All;
    };
    tell_why(&dir.tx_wishes.why, reason);
    let (start, end) = words::demote(&dir.tx.tail, &dir.rx.head);
    count(sock, reason);
    let ring_len = sock.tx.ring().map_or(0, |r| r.len());
    if sock.tx.state() == State::Inherited {
        // The parent has published more since the fork; only the shared word knows how much.
        if end.wrapping_sub(start) <= ring_len {
            sock.tx.at.store(end, Ordering::Relaxed);
        }
    }
    direct::settled(sock, start, end);
    // The tail is ours: nobody else advances it. The head is the peer's word: if it is not
    // possible, the last possible one stands.
    let at = sock.tx.at.load(Ordering::Relaxed);
    let start = if start <= at && at - start <= ring_len {
        start
    } else {
        sock.tx.seen.load(Ordering::Relaxed)
    };
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    sock.tx
        .linked
        .store(linked.saturating_sub(at - start), Ordering::Relaxed);
    // A reader that has shut both halves down has what was there then, and keeps it: on TCP it
    // would reset the connection.
    let from = if dir.rx_wishes.is_over() {
        since.unwrap_or(at)
    } else {
        start
    };
    if let Some(family) = sock.family() {
        family.begin_resend(from);
    }
    sock.tx.state.on(Event::Sealed);
    if let Some(link) = sock.link() {
        wake::own_threads(
            link,
            dir.tx_wishes.waiters.load(Ordering::SeqCst),
            sock.index.load(Ordering::Relaxed),
        );
    }
    goes_on(sock, resend(sock))
}

/// A re-send for which TCP has no room is the control thread's to go on with.
pub fn goes_on(sock: &'static Sock, resent: Resent) -> Resent {
    if resent == Resent::NoRoom {
        jobs::watch_room(sock);
    }
    resent
}

/// Under the tx lock, in state Resending: sends as much as TCP takes now.
pub fn resend(sock: &'static Sock) -> Resent {
    let (Some(family), Some(_)) = (sock.family(), sock.tx.dir()) else {
        return finish_resend(sock);
    };
    if remote::is_remote(sock) {
        match remote::before_resend(sock) {
            Before::Ready(from) => begin_resend(sock, from),
            Before::Held => return Resent::Held,
            Before::Full => return Resent::NoRoom,
            Before::Over => return finish_resend(sock),
        }
    }
    let pid = process::pid();
    if let Err(other) = family.claim(pid) {
        let dead = other != pid && !sys::is_process(other);
        return if dead { Resent::Lost } else { Resent::NoRoom };
    }
    let end = sock.tx.at.load(Ordering::Relaxed);
    let mut at = family.resent();
    let fd = sock.fd.load(Ordering::Relaxed);
    let mut full = false;
    while at < end {
        if sys::has_error(fd) {
            // The error is the program's to see, and a send would take it: what is left is lost
            // anyway.
            at = end;
            break;
        }
        let Some(ring) = sock.tx.ring() else { break };
        let [(piece, len), _] = ring.pieces(at, end - at);
        // SAFETY: the piece lies in the ring.
        match unsafe { sys::send(fd, piece, len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
            Ok(n) => {
                at += n as u64;
                sock.tx.add_kernel_bytes(n as u64);
                sock.conn().tx.resent.add(n as u64);
            }
            Err(libc::EAGAIN) => {
                full = true;
                break;
            }
            Err(libc::EINTR) => {}
            // The connection is over: the kernel tells the program at its next call.
            Err(_) => at = end,
        }
    }
    if at != family.resent() {
        after_tcp::acts_on(sock);
        crate::options::push_out(sock, fd);
    }
    family.unclaim(at);
    if full {
        Resent::NoRoom
    } else if !remote::may_finish(sock) {
        Resent::Held
    } else {
        finish_resend(sock)
    }
}

/// Under the tx lock: to another host, what the link was given from `from` on goes by TCP.
fn begin_resend(sock: &'static Sock, from: u64) {
    if sock.begun.swap(true, Ordering::Relaxed) {
        return;
    }
    let at = sock.tx.at.load(Ordering::Relaxed);
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    let again = at.saturating_sub(from);
    let linked = linked.saturating_sub(again);
    sock.tx.linked.store(linked, Ordering::Relaxed);
    if let Some(family) = sock.family() {
        family.begin_resend(from);
    }
}

fn finish_resend(sock: &'static Sock) -> Resent {
    sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
    let end = || {
        if sock.shut.load(Ordering::SeqCst) {
            let _ = sys::shutdown(sock.fd.load(Ordering::Relaxed), libc::SHUT_WR);
        }
    };
    // The end that the program asked for follows the last byte.
    end();
    sock.tx.state.on(Event::AllSent);
    // A handler may have asked for it in between.
    end();
    let mut waiters = 0;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // A waiter that comes later sees the state.
        waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        wake::own_threads(link, waiters, sock.index.load(Ordering::Relaxed));
    }
    sock.tx.set_dir(None);
    sock.conn().tx.holds_none();
    if sock.lingers.load(Ordering::Relaxed) {
        jobs::bury(sock);
    }
    // Sets that wait for room wait for the kernel's from now on.
    for i in 0..crate::sock::SETS {
        if let Some(set) = sock.set_at(i) {
            set.writes_by_tcp(sock, waiters);
        }
    }
    leave(sock);
    Resent::All
}

/// Under either lock: when both halves are Plain, this process leaves the stream.
pub fn leave(sock: &'static Sock) {
    if sock.rx.state() != State::Plain || sock.tx.state() != State::Plain {
        return;
    }
    remote::shut_loan(sock);
    if let Some((link, index)) = sock.take_stream() {
        for i in 0..crate::sock::SETS {
            if let Some(set) = sock.set_at(i) {
                set.forget_stream(sock, link, index);
            }
        }
        if link.is_foreign() {
            link.abandon_stream(index);
        } else {
            jobs::unwatch(sock);
            let family = sock.family();
            // Of a dead link nothing is put to another use, and relatives may still have to read
            // what the peer left.
            if link.is_alive() {
                family.inspect(|f| f.leave_stream());
            }
            link.leave_stream(index);
            let owing = sock.rx.owed.load(Ordering::Relaxed) != 0;
            family.inspect(|f| f.hand(owing));
            if !remote::left(link, index) {
                trim::returned(link);
                tell::attention(link, index);
            }
        }
        crate::trigger::rearm(sock);
    }
}

/// What TCP takes of a re-send, if there is one. `Lost`: also in a handler that interrupted a send
/// of the same socket.
pub fn resend_now(sock: &'static Sock) -> Resent {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Resent::Lost;
    };
    if sock.tx.state() == State::Resending {
        resend(sock)
    } else {
        Resent::All
    }
}

/// Sends the rest of a re-send, waiting for room: for a descriptor that is about to leave our hands
/// (exec, passing). Waits as a blocking write would; gives up when the connection fails.
pub fn finish_blocking(sock: &'static Sock, reason: Reason) {
    if remote::is_remote(sock) {
        return remote::finish(sock, reason);
    }
    while sock.tx.state() == State::Resending {
        match resend_now(sock) {
            Resent::All | Resent::Lost | Resent::Held => return,
            Resent::NoRoom => {
                let fd = sock.fd.load(Ordering::Relaxed);
                let _ = sys::poll_one(fd, libc::POLLOUT, None);
            }
        }
    }
}

/// How a parting process waits for TCP to take what is left of a re-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes: nobody is left to go on with it.
    Endless,
    /// Until then (`sys::now_ns`), or until a signal: a close that lingers.
    Until(u64),
}

impl Patience {
    const fn until(self) -> Option<u64> {
        match self {
            Self::Endless => None,
            Self::Until(deadline) => Some(deadline),
        }
    }
}

/// As [`finish_blocking`], for a socket that nobody will read from any more: input that has come,
/// or comes while we wait, makes an end of it, since TCP answers it by a reset then. False: the
/// time is over.
pub fn finish_parting(sock: &'static Sock, patience: Patience) -> bool {
    let fd = sock.fd.load(Ordering::Relaxed);
    let mut events = libc::POLLOUT | libc::POLLIN;
    loop {
        if remote::is_remote(sock) {
            // The link, or the peer, is to say how much of it is TCP's: within its own time limits.
            let most = sys::now_ns() + remote::PATIENCE_NS;
            remote::release(sock, patience.until().map_or(most, |until| most.min(until)));
        }
        if remote::has_input(sock, fd) {
            abandon_rest(sock);
            return true;
        }
        if sock.tx.state() != State::Resending {
            return true;
        }
        let resent = resend_now(sock);
        if !matches!(resent, Resent::NoRoom | Resent::Held) {
            return true;
        }
        let left = patience
            .until()
            .map(|until| until.saturating_sub(sys::now_ns()));
        if left == Some(0) {
            return false;
        }
        if resent == Resent::Held {
            continue;
        }
        let left = left.map(sys::timespec);
        let shown = sys::poll_one(fd, events, left);
        if shown == Err(libc::EINTR) && patience != Patience::Endless {
            return false;
        }
        if shown.is_ok_and(|s| s & libc::POLLIN != 0) && !remote::has_input(sock, fd) {
            // The peer's end, or a part of its record: these stay readable.
            events = libc::POLLOUT;
        }
    }
}

/// Under no lock, before a last close: makes TCP's buffer as large as what is left, where it may be
/// so large. (The kernel caps what is asked for, and what it then sets may be less than its own
/// tuning gave.)
pub fn make_room(sock: &'static Sock) {
    if sock.tx.state() != State::Resending {
        return;
    }
    let Some(most) = send_buffer_max() else {
        return;
    };
    let Ok(_section) = sock.tx.lock.enter() else {
        return;
    };
    if sock.tx.state() == State::Resending {
        let fd = sock.fd.load(Ordering::Relaxed);
        let now = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        let end = sock.tx.at.load(Ordering::Relaxed);
        let left = end.saturating_sub(sock.family().map_or(end, |f| f.resent()));
        // The kernel doubles it, for its own overhead.
        let asked = i64::from(now)
            .saturating_add(2 * left.min(1 << 30) as i64)
            .min(most);
        if asked * 2 > i64::from(now) && asked <= i64::from(i32::MAX) {
            let asked = asked as i32;
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &asked);
            resend(sock);
        }
    }
}

/// The most that SO_SNDBUF may be set to here.
fn send_buffer_max() -> Option<i64> {
    // Builds for tests go the long way.
    if cfg!(feature = "fault") {
        return None;
    }
    seccomp::may_use_system_calls().ok()?;
    let _low = sluice_runtime::own_fds::Low::begin();
    let most = sys::number_in(c"/proc/sys/net/core/wmem_max")?;
    most.try_into().ok()
}

/// A close with unread input: what we wrote stays in the ring for the peer, which drains it and
/// then sees the reset. Only the reading half's words are fixed, so that the peer's writes reach
/// the kernel.
pub fn leave_to_peer(sock: &'static Sock, reason: Reason) {
    if remote::is_remote(sock) {
        return abandon(sock, reason);
    }
    if let Ok(_section) = sock.tx.lock.enter() {
        if sock.tx.state() == State::Link && direct::is_up(sock) {
            direct::resolve(sock);
        }
        if sock.tx.state() != State::Plain {
            count(sock, reason);
            sock.tx.state.on(Event::LeftToPeer);
            sock.tx.set_dir(None);
            sock.conn().tx.holds_none();
            // Where the peer has ended its side nothing is read from the stream any more, either.
            leave(sock);
        }
    }
    if let Ok(_section) = sock.rx.lock.enter() {
        drop_unread(sock);
    }
    demote(sock, Which::Rx, reason);
}

/// Under the rx lock: takes what is unread out of the ring. The peer would send it again, and if
/// the reset came in between its `send` would be told of that, and not the program.
fn drop_unread(sock: &Sock) {
    let (Some(dir), Some(ring)) = (sock.rx.dir(), sock.rx.ring()) else {
        return;
    };
    let at = sock.rx.at.load(Ordering::Relaxed);
    let (tail, head) = (dir.tx.tail.read(), dir.rx.head.read());
    let possible = tail.offset > at && tail.offset - at <= ring.len();
    if possible && !tail.flagged && dir.rx.head.consume(head.round, at, tail.offset).is_ok() {
        sock.rx.at.store(tail.offset, Ordering::Relaxed);
    }
}

/// Under the tx lock: bytes of a connection that lingers are lost. It ends by a reset.
pub fn lose_rest(sock: &'static Sock) {
    sys::set_linger(sock.fd.load(Ordering::Relaxed), Some(0));
    if sock.tx.state() == State::Resending {
        finish_resend(sock);
    }
}

/// The stream, to another host, is given up as it is: the connection is to be reset, or TCP has all
/// that it is to have.
pub fn abandon(sock: &'static Sock, reason: Reason) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        count(sock, reason);
        sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
        super::options::release_low(sock);
        for half in [&sock.rx, &sock.tx] {
            half.state.on(Event::Abandoned);
            half.set_dir(None);
        }
        sock.conn().rx.holds_none();
        sock.conn().tx.holds_none();
        leave(sock);
    }
}

/// What is left of a re-send is not sent: the connection is to be reset, or nobody can read it.
pub fn abandon_rest(sock: &'static Sock) {
    if sock.tx.state() == State::Resending
        && let Ok(_section) = sock.tx.lock.enter()
        && sock.tx.state() == State::Resending
    {
        finish_resend(sock);
    }
}

/// Under the rx lock: this process uses a stream of its parent.
pub fn inherited_rx(sock: &'static Sock) {
    if remote::is_remote(sock) {
        return remote::claim(sock, &sock.rx);
    }
    settle_rx(sock, Reason::Fork);
}

/// Under the tx lock: this process uses a stream of its parent.
pub fn inherited_tx(sock: &'static Sock) {
    if remote::is_remote(sock) {
        return remote::claim(sock, &sock.tx);
    }
    settle_tx(sock, Reason::Fork);
}

/// A use that does not move bytes: is the stream one of the parent's, which goes back to TCP now?
pub fn takes_back_inherited(sock: &'static Sock) -> bool {
    let inherited = sock.rx.state() == State::Inherited || sock.tx.state() == State::Inherited;
    if inherited {
        demote(sock, Which::Both, Reason::Fork);
    }
    inherited
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_stream_left_to_the_peer_behind_its_end_is_given_back() {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        assert_eq!((sock.rx.state(), a.stream_count()), (State::Plain, 1));
        leave_to_peer(sock, Reason::Disconnected);
        assert_eq!(sock.tx.state(), State::Plain);
        assert!(sock.link().is_none());
        assert_eq!(a.stream_count(), 0);
    }
}
