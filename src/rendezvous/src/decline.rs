//! Tells the other end why this one stays on TCP, so that both show the same reason. An end that
//! declines uses the same name, or the same question over a link, as one that wants to meet.
//!
//! The reason is the peer's word and is shown to people. Nothing is decided by it.

use super::message::{Kind, Message, Nonce};
use super::{Look, NAME_NS, PENDING, PENDING_MAX, Pending, Stage, ask, meetings};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_sockets::{tell, trigger};
use sluice_stats::Reason;

/// Most names that declining ends hold. The others are left for ends that want to leave TCP.
const NAMES: usize = PENDING_MAX / 8;

/// Tells the other end that this one stays on TCP: now, or when it comes within NAME_NS.
pub(super) fn tell(look: Look) {
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    super::move_on(&mut list);
    let Some(reason) = look.refusal().filter(|_| look.is_current()) else {
        return;
    };
    if let Some(earlier) = list.of_mut(look.sock) {
        if !earlier.is_idle() {
            return;
        }
        if earlier.refuses.is_some() {
            // The other end may come to this name soon.
            earlier.look.refuses = Some(reason);
            earlier.deadline = sys::now_ns() + NAME_NS;
            return meetings::look_soon();
        }
        list.take(look.sock);
    }
    let is_own_end = |p: &Pending| p.mirror.inode == look.own;
    if let Some(other) = list.take_by_key(look.key, is_own_end) {
        // The other end is in this process.
        return heard(other, reason);
    }
    if let Some((link, nonce)) = ask::take_question(look) {
        // The question may be of an earlier try, which ignores answers. So the name, too.
        answer(look, link, nonce, reason);
    }
    let refusals = list.with_socket().filter(|p| p.refuses.is_some()).count();
    if refusals < NAMES
        && meetings::with_sockets() < PENDING_MAX
        && let Ok(meeting) = super::names::first_or_second(look)
        && matches!(meeting.stage, Stage::Named { .. })
    {
        super::enlist(meeting, &mut list);
    }
}

/// A Decline for this reason.
pub(super) fn message(reason: Reason) -> Message {
    Message {
        reason: reason as u16,
        ..Message::new(Kind::Decline)
    }
}

/// Declines a question of the peer's that came with the nonce `echo`.
pub(super) fn answer(look: Look, link: &Link, echo: Nonce, reason: Reason) {
    let decline = Message {
        // The connection is named as in the question.
        token: [look.key, look.mirror.inode],
        echo,
        ..message(reason)
    };
    tell::tell(link, &decline, None);
}

/// The reason of a Decline.
pub(super) fn reason(declined: &Message) -> Reason {
    let told = Reason::from_u16(declined.reason);
    told.filter(|reason| reason.is_told())
        .unwrap_or(Reason::NoAnswer)
}

/// The other end has said why it stays on TCP. If that changes, the other end asks.
pub(super) fn heard(meeting: Pending, reason: Reason) {
    let sock = meeting.sock;
    if let Some(conn) = super::end(meeting) {
        trigger::has_failed(sock);
        // Other reasons may pass, or the other end cannot know them without a try of this one.
        if reason.is_option() {
            trigger::put_off(sock);
        }
        conn.stays_for_peer(reason);
    }
}
