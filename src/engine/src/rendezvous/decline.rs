//! An end that does not leave TCP tells the other end why, so that both show the same reason. It
//! comes to the same name, or answers the same question over a link, as an end that wants to meet,
//! and says no.
//!
//! The reason is the peer's word, for people. Nothing is decided by it.

use super::message::{Kind, Message, Nonce};
use super::{COUNT, Look, PENDING, PENDING_MAX, Pending, Stage, ask, control, count_names};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_stats::Reason;

/// Names that refusals hold at most, of those that there are: others are for ends that want to
/// leave TCP.
const NAMES: usize = PENDING_MAX / 8;

/// This end refuses: tells the other end, now or when that comes, if it comes soon. The inode of this
/// end is `own`.
pub(super) fn tell(look: Look, own: u64) {
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    super::drop_expired(&mut list);
    let Some(reason) = look.refusal().filter(|_| look.is_current()) else {
        return;
    };
    if let Some(at) = list.iter().position(|p| core::ptr::eq(p.sock, look.of.0)) {
        if !list.get(at).is_some_and(Pending::is_idle) {
            return;
        }
        list.swap_remove(at);
    }
    let own_end = |p: &Pending| p.key == look.key && p.mirror.inode == own;
    if let Some(at) = list.iter().position(own_end) {
        // The other end is in this process.
        heard(list.swap_remove(at), reason);
        return count_names(&list);
    }
    if let Some((link, nonce)) = ask::take_question(look) {
        // Of an earlier try, perhaps, so that it is not heard.
        answer(look, link, nonce, reason);
    }
    if list.iter().filter(|p| p.refuses.is_some()).count() >= NAMES
        || COUNT.load(Ordering::Relaxed) as usize >= PENDING_MAX
    {
        ask::in_vain(look);
    } else if let Ok(meeting) = super::first_or_second(look)
        && matches!(meeting.stage, Stage::Named { .. })
    {
        if control::is_running() {
            control::watch_meeting(meeting.raw());
        }
        list.push(meeting);
    }
    count_names(&list);
}

/// A Decline for this reason.
pub(super) fn message(reason: Reason) -> Message {
    Message {
        reason: reason as u16,
        ..Message::new(Kind::Decline)
    }
}

/// Answers a question of the peer's, which has come with `echo`.
pub(super) fn answer(look: Look, link: &Link, echo: Nonce, reason: Reason) {
    let decline = Message {
        // The connection as its asker names it.
        token: [look.key, look.mirror.inode],
        echo,
        ..message(reason)
    };
    control::tell(link, &decline, None);
}

/// Takes the meeting out whose question is declined, if nobody has come to it otherwise.
pub(super) fn take_asked(list: &mut Vec<Pending>, declined: &Message) -> Option<Pending> {
    let at = list.iter().position(|p| {
        p.key == declined.token[0]
            && p.nonce == declined.echo
            && matches!(p.stage, Stage::Named { .. } | Stage::Asked)
    })?;
    Some(list.swap_remove(at))
}

/// The reason of a Decline.
pub(super) fn reason(declined: &Message) -> Reason {
    let told = Reason::from_u16(declined.reason);
    told.filter(|reason| reason.is_told())
        .unwrap_or(Reason::NoAnswer)
}

/// The other end has said why it does not leave TCP. It may ask later, when it does.
pub(super) fn heard(meeting: Pending, reason: Reason) {
    let look = meeting.look();
    if let Some(conn) = super::end(meeting) {
        conn.stays_for_peer(reason);
        ask::in_vain(look);
    }
}
