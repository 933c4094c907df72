//! A build without links to other hosts: no stream goes there.

#![allow(
    missing_docs,
    reason = "each is described where a build with such links has it"
)]

use super::Before;
use crate::io_wait::IoWait;
use crate::resend::Resent;
use crate::sock::{Half, Known, Sock};
use sluice_runtime::iov::Cursor;
use sluice_stats::Reason;

#[inline(always)]
pub const fn is_remote(_: &Sock) -> bool {
    false
}
#[inline(always)]
pub const fn hides_tcp(_: &Sock) -> bool {
    false
}
#[inline(always)]
pub const fn reads_link(_: &Sock) -> bool {
    false
}
#[inline(always)]
pub const fn records() -> u64 {
    0
}
pub const fn hears(_: &'static Sock) -> bool {
    false
}
#[inline(always)]
pub const fn wants_more(_: &Sock, _: u64, _: u64) {}
pub const fn settle_tx(_: &'static Sock, _: Reason) -> Resent {
    Resent::All
}
pub const fn deliver(_: &Sock) {}
pub const fn wants_no_answer(_: &'static Sock) {}
pub const fn settle_rx(_: &'static Sock, _: Reason) {}
pub const fn before_resend(_: &'static Sock) -> Before {
    Before::Over
}
pub const fn may_finish(_: &'static Sock) -> bool {
    true
}
#[inline(always)]
pub const fn awaits_record(_: &Sock) -> bool {
    false
}
#[inline]
pub fn has_input(_: &'static Sock, fd: i32) -> bool {
    crate::tcp::has_bytes(fd)
}
pub const fn hear_tcp(_: &'static Sock, _: i32) -> bool {
    false
}
pub const fn tcp_ended(_: &'static Sock) -> bool {
    true
}
pub const fn advance(_: &'static Sock) {}
pub const fn is_held(_: &'static Sock) -> bool {
    false
}
pub const fn is_switching(_: &Sock) -> bool {
    false
}
pub const fn is_far(_: &Sock) -> bool {
    false
}
pub const fn finish(_: &'static Sock, _: Reason) {}
pub const fn finish_reading(_: &'static Sock, _: Reason) {}
#[inline(always)]
pub const fn finish_within(_: &'static Sock, _: u64) {}
pub const fn await_return(_: &'static Sock, _: u64) {}
pub const fn release(_: &'static Sock, _: u64) {}
pub const fn answer_calls() {}
pub const fn claim(_: &'static Sock, _: &Half) {}
pub const fn demote(_: &'static Sock, _: Reason) -> bool {
    false
}
pub enum Found {
    Bytes(usize),
    Nothing,
    Ended,
}

pub fn is_lent(_: &Sock) -> bool {
    false
}
pub fn lend(_: &'static Sock, _: &Cursor, _: bool, _: &mut IoWait) -> bool {
    false
}
pub(crate) fn look_at_loan(_: &'static Sock, _: &mut Cursor, _: &mut IoWait) -> Found {
    Found::Ended
}
pub(crate) fn end_loan(_: &'static Sock, _: &mut IoWait) {}
pub(crate) fn revoke_loan(_: Known, _: &mut IoWait) {}
pub fn land(_: &Sock, _: impl Fn() -> bool) {}
pub fn goes_direct(_: &Sock) -> bool {
    false
}
