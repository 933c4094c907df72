//! When a connection looks for its other end: when TCP has cost it about what an upgrade costs (the
//! ski-rental rule: at worst both are paid).
//!
//! Ends without a link between them meet only if they look at the same time, so they look at the
//! same offsets of the stream. Ends that may have a link ask over it at any offset.

use super::socket::{Socket, State, role};
use crate::meeting::{self, Effort};
use crate::path;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::bucket::{Bucket, Rate};
use sluice_fabric::sys;
use sluice_runtime::config::{Upgrade, config};

/// Bytes between a demotion and the next try, doubled with each demotion.
const RETRY_STEP: u64 = 1 << 20;
/// The same in eager mode.
const RETRY_STEP_EAGER: u64 = 64 << 10;
/// Unsuccessful tries are at most so many bytes apart.
const STEP_MAX: u64 = 64 << 20;
/// Bytes between two tries after the other end has refused.
const REFUSED_STEP: u64 = 16 * STEP_MAX;
/// A stream has done well if it moved so many times the bytes that its upgrade waited for; then the
/// next upgrade may come as soon as the first.
const DID_WELL: u64 = 16;

/// The first offset at which ends without a link look for each other; each further one is twice as
/// far. Ends with different settings share this grid.
const GRID: u64 = 1 << 10;
/// The first offset between hosts, where a link costs more and the proof needs bytes to cover.
const FAR_GRID: u64 = 32 << 10;

/// What TCP costs a connection, in bytes: a call that moves bytes costs as much as so many, a
/// change of direction (one end waits for the other) [`TURN`], and an upgrade [`UPGRADE`].
const CALL: u64 = 8 << 10;
/// See [`CALL`].
const TURN: u64 = 56 << 10;
/// See [`CALL`].
const UPGRADE: u64 = 2 << 20;
/// From this share on, an end looks whether the other end, which may have paid more, is there.
const LOOKS: u64 = UPGRADE / 8;
/// A call that writes so much more than was paid looks for the other end first: by a link it ends
/// sooner, even if the two ends have to meet.
pub(crate) const LARGE: usize = 3 << 19;

/// Sets the first try of a connection that may leave TCP.
pub fn begin(sock: &Socket) {
    sock.next_try.store(first_try(), Ordering::Relaxed);
}

/// Stream offset of the first try.
pub(crate) fn first_try() -> u64 {
    match config().upgrade {
        Upgrade::Auto if meeting::has_links() => 1,
        Upgrade::Auto => GRID,
        Upgrade::Eager => 1,
        Upgrade::At(bytes) => on_grid(bytes),
        Upgrade::Off => u64::MAX,
    }
}

/// The offset of the first try between hosts.
pub fn first_far_try() -> u64 {
    match config().upgrade {
        Upgrade::Auto => FAR_GRID,
        _ => first_try(),
    }
}

/// The first offset of the grid at or after `offset`.
fn on_grid(offset: u64) -> u64 {
    if offset > STEP_MAX {
        offset.div_ceil(STEP_MAX).saturating_mul(STEP_MAX)
    } else {
        offset.next_power_of_two().max(GRID)
    }
}

/// What TCP has cost the connection so far, see [`CALL`].
fn paid(sock: &Socket) -> u64 {
    let [rx, tx] = [&sock.rx, &sock.tx].map(|half| u64::from(half.moves.load(Ordering::Relaxed)));
    let all = sock.offset() + (rx + tx) * CALL + 2 * rx.min(tx) * TURN;
    all.saturating_sub(sock.written_off.load(Ordering::Relaxed))
}

/// The stream goes back to TCP through no fault of its own or its ends': it leaves TCP again when
/// that has cost half of an upgrade.
pub(crate) fn comes_back(sock: &Socket) {
    owes_half(sock);
    sock.path.set_comes_back(true);
}

/// There was no memory for a ring: the connection asks again when it has cost half of an upgrade
/// more.
pub fn asks_again(sock: &Socket) {
    owes_half(sock);
    sock.has_asked.store(false, Ordering::Relaxed);
    soon(sock);
}

fn owes_half(sock: &Socket) {
    sock.written_off.store(0, Ordering::Relaxed);
    let all = paid(sock);
    sock.written_off
        .store(all.saturating_sub(UPGRADE / 2).max(1), Ordering::Relaxed);
}

/// Value of `next_try` while a thread plans the next try.
const PLANNED: u64 = u64::MAX - 1;

/// Called after the call that crossed `next_try` has read or written: tries, and sets the next
/// offset.
#[cold]
pub fn crossed(sock: &'static Socket, has_read: bool) {
    let at = sock.next_try.load(Ordering::Relaxed);
    let offset = sock.offset();
    if at == u64::MAX || offset < at {
        return;
    }
    let change = |from, to| {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        sock.next_try.compare_exchange(from, to, set, fetch).is_ok()
    };
    // This thread plans. If another thread wants an earlier try meanwhile, its offset stays.
    if !change(at, PLANNED) {
        return;
    }
    let (next, effort) = plan(sock, at, offset, has_read);
    change(PLANNED, next);
    if sock.link().is_none()
        && !sock.is_accelerated()
        && let Some(effort) = effort
    {
        meeting::attempt(sock, effort);
    }
}

/// The offset of the next try, and what to do at this one.
fn plan(sock: &Socket, at: u64, offset: u64, has_read: bool) -> (u64, Option<Effort>) {
    let step = sock.retry_step.load(Ordering::Relaxed);
    if step != 0 {
        let wider = (step * 2).min(STEP_MAX.max(step));
        sock.retry_step.store(wider, Ordering::Relaxed);
        return (offset + wider, Some(Effort::Name));
    }
    let is_asked_for = sock.is_asked_for.swap(false, Ordering::AcqRel);
    let next_on_grid = on_grid(offset + 1);
    let is_on_grid = on_grid(at) <= offset;
    let (on_grid, is_due) = match config().upgrade {
        Upgrade::Auto => match paid(sock) {
            // The writer may know that more comes, and wait for this end; and ends on two hosts
            // count their calls differently.
            ..LOOKS => ((offset >= FAR_GRID).then_some(Effort::Look), false),
            LOOKS..UPGRADE => (Some(Effort::Look), false),
            UPGRADE.. => (Some(Effort::Name), true),
        },
        _ => (Some(Effort::Name), offset >= first_try()),
    };
    let has_links = meeting::has_links();
    let asks = is_due && has_links && !sock.has_asked.load(Ordering::Relaxed);
    let is_answered = has_read && sock.is_early.swap(false, Ordering::AcqRel);
    let waits = sock.is_early.load(Ordering::Acquire);
    let effort = [
        on_grid.filter(|_| is_on_grid || at <= 1 && is_due),
        asks.then_some(Effort::Ask),
        is_asked_for.then_some(Effort::Answer),
        is_answered.then_some(Effort::Name),
    ];
    let next = if waits || has_links && !is_due {
        offset + 1
    } else {
        next_on_grid
    };
    (next, effort.into_iter().flatten().max())
}

/// Looks for the other end before a call writes `bytes`, which are counted as if TCP had taken
/// them; at any offset, once for a connection. The other end comes to the name at its next offset
/// of the grid.
#[cold]
pub(crate) fn before_large(sock: &'static Socket, bytes: usize) {
    let ahead = bytes as u64;
    let is_due = match config().upgrade {
        Upgrade::Auto => paid(sock) + ahead >= LARGE as u64,
        _ => sock.offset() + ahead >= first_try(),
    };
    if is_due
        && sock.link().is_none()
        && !sock.is_accelerated()
        && sock.retry_step.load(Ordering::Relaxed) == 0
        && !sock.was_large.swap(true, Ordering::Relaxed)
    {
        meeting::attempt(sock, Effort::Name);
    }
}

/// How long one large write waits for the meeting once one end has come to the other, in ns: the
/// first meeting of two processes makes their shared memory.
const PATIENCE_NS: u64 = 2_000_000;
/// How much of that the call waits for the other end to come, which has the first piece to read.
/// Not if nobody came to the last connection of its kind.
const COMES_NS: u64 = 300_000;

/// When a call's patience ends; it begins with the first piece.
#[derive(Default)]
pub struct Patience {
    /// 0: not begun.
    until: u64,
    /// Until when the call also waits if the other end has not come.
    comes_until: u64,
}

/// Called between two pieces of a large write. While the two ends meet, the next piece waits: the
/// reader has to read by TCP what TCP has taken by then.
#[cold]
pub fn amid(sock: &'static Socket, patience: &mut Patience) {
    if sock.offset() >= sock.next_try.load(Ordering::Relaxed) {
        crossed(sock, false);
    }
    if !meeting::is_meeting() && sock.tx.state() != State::Proved {
        return;
    }
    if patience.until == 0 {
        let now = sys::now_ns();
        let comes_ns = if has_kind_failed(sock) { 0 } else { COMES_NS };
        (patience.until, patience.comes_until) = (now + PATIENCE_NS, now + comes_ns);
    }
    let came = meeting::settle(sock, patience.until, patience.comes_until);
    if came == Some(false) && core::mem::take(&mut patience.comes_until) != 0 {
        has_failed(sock);
    }
}

/// The other end is not accepted yet, or has not sent anything: looks for it when it has.
pub fn when_answered(sock: &Socket) {
    if sock.rx.kernel_bytes() == 0 {
        sock.is_early.store(true, Ordering::Release);
        soon(sock);
    }
}

/// The other end asks for this one, which has not moved a byte here, so a relative may be using it:
/// answers with the first byte.
pub fn when_used(sock: &Socket) {
    sock.is_asked_for.store(true, Ordering::Release);
    soon(sock);
}

/// Makes the next call that moves a byte try.
fn soon(sock: &Socket) {
    let next = sock.offset() + 1;
    let sooner = |at: u64| (at != u64::MAX).then_some(at.min(next));
    let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
    let _ = sock.next_try.fetch_update(set, fetch, sooner);
}

/// A link has come up: each connection without a stream asks over it with its next call.
pub fn new_link() {
    super::socket::for_all(|sock| {
        sock.has_asked.store(false, Ordering::Relaxed);
        if sock.link().is_none() && sock.retry_step.load(Ordering::Relaxed) == 0 {
            soon(sock);
        }
    });
}

/// The other end will stay on TCP: this end seldom looks for it from now on, also during a large
/// write, which waits for it each time.
pub fn put_off(sock: &Socket) {
    let next = sock.offset() + REFUSED_STEP;
    let later = |at: u64| (at < PLANNED).then_some(at.max(next));
    let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
    let _ = sock.next_try.fetch_update(set, fetch, later);
}

/// Sets the next try after a demotion. The ends need not agree: both know the link, and the end
/// that is asked over it grants at once.
pub(crate) fn rearm(sock: &'static Socket) {
    if sock.pinned.load(Ordering::Relaxed) != 0 || config().upgrade == Upgrade::Off {
        return;
    }
    path::goes_on(sock);
    sock.has_asked.store(false, Ordering::Relaxed);
    if sock.path.set_comes_back(false) {
        sock.retry_step.store(0, Ordering::Relaxed);
        return sock.next_try.store(sock.offset() + 1, Ordering::Relaxed);
    }
    let first = if config().upgrade == Upgrade::Eager {
        RETRY_STEP_EAGER
    } else {
        RETRY_STEP
    };
    let times = sock.backoff.load(Ordering::Relaxed).saturating_sub(1);
    let mut step = first << times.min(20);
    let moved = sock
        .linked()
        .saturating_sub(sock.linked_before.load(Ordering::Relaxed));
    if moved >= step * DID_WELL {
        sock.backoff.store(1, Ordering::Relaxed);
        step = first;
    }
    sock.retry_step.store(step, Ordering::Relaxed);
    sock.next_try.store(sock.offset() + step, Ordering::Relaxed);
}

/// Microseconds that unsuccessful tries may cost the process: 1 % of one processor's time.
const IN_VAIN: Rate = Rate {
    most: 2_000,
    per_second: 10_000,
};
/// The part of it for connections whose kind has failed lately.
const AFTER_FAILURE: Rate = Rate {
    most: IN_VAIN.most / 2,
    ..IN_VAIN
};

static BUDGET: Bucket = Bucket::new();

/// The kinds of connections whose last try failed, one bit each. The bit only decides about the
/// last half of the budget, so two kinds may share one.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// The kinds of connections whose last one met its other end. The next one probably has a link to
/// ask over, so it asks before it goes to a name.
static MET: AtomicU64 = AtomicU64::new(0);

/// The bit of a kind: the address that was connected to, or the accepting port with the peer's IP
/// address.
fn kind(is_accepted: bool, local: SocketAddr, peer: SocketAddr) -> u64 {
    let port = if is_accepted {
        local.port()
    } else {
        peer.port()
    };
    let ip = match peer.ip().to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() ^ v6.to_bits() >> 64) as u64,
    };
    let mixed = (ip << 17 ^ u64::from(port) << 1 ^ u64::from(is_accepted))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 << (mixed >> 58)
}

fn kind_of(sock: &Socket) -> Option<u64> {
    let is_accepted = sock.role.load(Ordering::Relaxed) == role::ACCEPTED;
    let conn = sock.conn();
    Some(kind(is_accepted, conn.local()?, conn.peer()?))
}

/// Returns whether the connection's kind is in `kinds`.
fn is_among(kinds: &AtomicU64, sock: &Socket) -> bool {
    kind_of(sock).is_some_and(|kind| kinds.load(Ordering::Relaxed) & kind != 0)
}

/// Returns whether the last connection of this kind looked in vain.
fn has_kind_failed(sock: &Socket) -> bool {
    is_among(&FAILED, sock)
}

/// Returns whether the connection, within this host and with known ends, will ask for its other end
/// over a link. Not an accepted one that has moved much: its kind includes all clients of the host,
/// and one that has no link may have bound a name before a large write.
pub fn will_ask(sock: &Socket) -> bool {
    let is_accepted = sock.role.load(Ordering::Relaxed) == role::ACCEPTED;
    meeting::has_links()
        && config().upgrade == Upgrade::Auto
        && !(is_accepted && sock.offset() >= 2 * FAR_GRID)
        && is_among(&MET, sock)
}

/// Returns whether the connection, whose ends are known, may try with this effort. With `eager` or
/// an offset in the settings it always may.
pub fn may_spend(sock: &Socket, effort: Effort) -> bool {
    if config().upgrade != Upgrade::Auto {
        return true;
    }
    let rate = if has_kind_failed(sock) {
        AFTER_FAILURE
    } else {
        IN_VAIN
    };
    BUDGET.spend(rate, effort.price(), sys::now_ns())
}

/// The connection has met its other end: gives the cost back to the budget.
pub fn has_met(sock: &Socket) {
    BUDGET.give_back(IN_VAIN, Effort::Name.price());
    note(sock, &MET, &FAILED);
}

/// The connection has looked for its other end in vain.
pub fn has_failed(sock: &Socket) {
    note(sock, &FAILED, &MET);
}

/// No process on a link of this one holds the other end: the next of its kind may have to go to a
/// name.
pub fn has_asked_in_vain(sock: &Socket) {
    if let Some(kind) = kind_of(sock) {
        MET.fetch_and(!kind, Ordering::Relaxed);
    }
}

/// Puts the connection's kind into `these` and takes it out of `those`.
fn note(sock: &Socket, these: &AtomicU64, those: &AtomicU64) {
    let Some(kind) = kind_of(sock) else { return };
    // Other threads read these words all the time, so only changes are written.
    if these.load(Ordering::Relaxed) & kind == 0 {
        these.fetch_or(kind, Ordering::Relaxed);
    }
    if those.load(Ordering::Relaxed) & kind != 0 {
        those.fetch_and(!kind, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use std::sync::Mutex;

    /// A socket that has moved so many bytes in so many calls of each direction.
    fn moved(bytes: u64, [rx, tx]: [u32; 2]) -> &'static Socket {
        let sock = socket::alloc(-1, role::CONNECTING).unwrap();
        begin(sock);
        sock.tx.add_kernel_bytes(bytes);
        sock.rx.moves.store(rx, Ordering::Relaxed);
        sock.tx.moves.store(tx, Ordering::Relaxed);
        sock
    }

    /// Parallel tests share one budget and the kinds of connections.
    static KINDS: Mutex<()> = Mutex::new(());
    static LINKS: Mutex<()> = Mutex::new(());

    /// Runs `then` as if the process had so many links.
    fn with_links<R>(count: u64, then: impl FnOnce() -> R) -> R {
        let _alone = LINKS.lock().unwrap();
        let links = &sluice_stats::ROOT.links;
        let before = links.load();
        links.lower(before);
        links.raise(count);
        let done = then();
        links.lower(count);
        links.raise(before);
        done
    }

    /// The plan for such a socket whose last try was due at the offset `at`.
    fn planned(bytes: u64, calls: [u32; 2], at: u64) -> (u64, Option<Effort>) {
        let sock = moved(bytes, calls);
        let plan = plan(sock, at, bytes, false);
        socket::free(sock);
        plan
    }

    #[test]
    fn a_connection_looks_for_a_name_before_it_has_one() {
        with_links(0, || {
            let turns = |n| [n; 2];
            assert_eq!(planned(1100, turns(1), 1024), (2048, None));
            assert_eq!(planned(1100, turns(2), 1024), (2048, Some(Effort::Look)));
            assert_eq!(planned(1100, turns(15), 1024), (2048, Some(Effort::Look)));
            assert_eq!(planned(1100, turns(16), 1024), (2048, Some(Effort::Name)));
            // In one direction.
            assert_eq!(planned(1 << 20, [64, 1], 1 << 20).1, Some(Effort::Look));
            assert_eq!(planned(2 << 20, [1, 0], 2 << 20).1, Some(Effort::Name));
            assert_eq!(planned(2 << 14, [256, 0], 2 << 14).1, Some(Effort::Name));
            assert_eq!(planned(100 << 20, [1, 0], 64 << 20).0, 128 << 20);
        });
    }

    #[test]
    fn over_links_it_asks_at_any_offset_and_once() {
        with_links(1, || {
            assert_eq!(planned(500, [15, 15], 499), (501, None));
            assert_eq!(planned(500, [16, 16], 499), (1024, Some(Effort::Ask)));
            let sock = moved(500, [16, 16]);
            sock.has_asked.store(true, Ordering::Relaxed);
            assert_eq!(plan(sock, 499, 500, false), (1024, None));
            socket::free(sock);
        });
    }

    #[test]
    fn a_stream_that_was_given_up_for_others_comes_back_for_half_of_the_price() {
        with_links(1, || {
            let sock = moved((1 << 30) + 5, [500, 500]);
            comes_back(sock);
            assert_eq!(paid(sock), UPGRADE / 2);
            let at = sock.offset();
            assert_eq!(plan(sock, at, at, false).1, None);
            // Eight requests with their answers.
            for half in [&sock.rx, &sock.tx] {
                half.moves.store(508, Ordering::Relaxed);
            }
            assert_eq!(plan(sock, at, at, false).1, Some(Effort::Ask));
            socket::free(sock);
        });
    }

    #[test]
    fn who_could_not_look_does_so_when_it_is_answered() {
        with_links(0, || {
            let sock = moved(3000, [20, 20]);
            when_answered(sock);
            assert_eq!(sock.next_try.load(Ordering::Relaxed), 1024);
            sock.next_try.store(3001, Ordering::Relaxed);
            sock.tx.add_kernel_bytes(100);
            assert_eq!(plan(sock, 3001, 3100, false), (3101, None));
            assert_eq!(plan(sock, 3101, 3100, true), (4096, Some(Effort::Name)));
            assert_eq!(plan(sock, 3101, 3100, true), (4096, None));
            socket::free(sock);
        });
    }

    #[test]
    fn who_is_asked_for_answers_with_its_first_byte() {
        with_links(0, || {
            let sock = moved(0, [0, 0]);
            when_used(sock);
            assert_eq!(sock.next_try.load(Ordering::Relaxed), 1);
            assert_eq!(plan(sock, 1, 5, true), (1024, Some(Effort::Answer)));
            assert_eq!(plan(sock, 1024, 1030, true), (2048, None));
            socket::free(sock);
        });
    }

    /// A connection of this process to this port.
    fn to(port: u16) -> &'static Socket {
        let sock = moved(0, [0, 0]);
        let [local, peer] = [1, port].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let role = sluice_stats::Role::Connecting;
        sock.conn().describe(-1, role, local, peer);
        sock
    }

    #[test]
    fn a_kind_that_has_met_comes_to_no_name_where_there_is_a_link() {
        let _alone = KINDS.lock().unwrap();
        let (sock, other) = (to(90), to(91));
        assert_ne!(kind_of(sock), kind_of(other));
        for ends in [has_failed, has_asked_in_vain] {
            has_met(sock);
            assert!(!with_links(0, || will_ask(sock)));
            assert!(with_links(1, || will_ask(sock) && !will_ask(other)));
            ends(sock);
            assert!(!with_links(1, || will_ask(sock)));
        }
        for sock in [sock, other] {
            socket::free(sock);
        }
    }

    #[test]
    fn searches_in_vain_cost_a_bounded_time_and_most_of_it_those_that_failed_before() {
        let _alone = KINDS.lock().unwrap();
        let (plain, other) = (to(80), to(81));
        assert_ne!(kind_of(plain), kind_of(other));
        BUDGET.fill();
        has_failed(plain);
        let spends = |sock| {
            (0..10_000)
                .take_while(|_| may_spend(sock, Effort::Name))
                .count()
        };
        let half = (IN_VAIN.most / 2 / Effort::Name.price()) as usize;
        let about_half = half * 4 / 5..half * 3 / 2;
        let after_failure = spends(plain);
        assert!(about_half.contains(&after_failure), "{after_failure}");
        let rest = spends(other);
        assert!(about_half.contains(&rest), "{rest}");
        has_met(plain);
        assert!(may_spend(plain, Effort::Name), "what it had spent");
        assert!(!may_spend(plain, Effort::Name));
        for sock in [plain, other] {
            socket::free(sock);
        }
        BUDGET.fill();
        for kinds in [&FAILED, &MET] {
            kinds.store(0, Ordering::Relaxed);
        }
    }
}
