//! A build without links to other hosts: no stream goes there.

#![allow(
    missing_docs,
    reason = "each is described where a build with such links has it"
)]

use super::Before;
use crate::io_wait::IoWait;
use crate::resend::Resent;
use crate::socket::{Half, Known, Socket};
use sluice_runtime::iov::Cursor;
use sluice_stats::Reason;

#[inline(always)]
pub const fn is_remote(_: &Socket) -> bool {
    false
}
#[inline(always)]
pub const fn hides_tcp(_: &Socket) -> bool {
    false
}
#[inline(always)]
pub const fn reads_link(_: &Socket) -> bool {
    false
}
#[inline(always)]
pub const fn records() -> u64 {
    0
}
pub const fn hears(_: &'static Socket) -> bool {
    false
}
#[inline(always)]
pub const fn wants_more(_: &Socket, _: u64, _: u64) {}
pub const fn settle_tx(_: &'static Socket, _: Reason) -> Resent {
    Resent::All
}
pub const fn deliver(_: &Socket) {}
pub const fn wants_no_answer(_: &'static Socket) {}
pub const fn settle_rx(_: &'static Socket, _: Reason) {}
pub const fn before_resend(_: &'static Socket) -> Before {
    Before::Over
}
pub const fn may_finish(_: &'static Socket) -> bool {
    true
}
#[inline(always)]
pub const fn awaits_record(_: &Socket) -> bool {
    false
}
#[inline]
pub fn has_input(_: &'static Socket, fd: i32) -> bool {
    crate::tcp::has_bytes(fd)
}
pub const fn hear_tcp(_: &'static Socket, _: i32) -> bool {
    false
}
pub const fn tcp_ended(_: &'static Socket) -> bool {
    true
}
pub const fn advance(_: &'static Socket) {}
pub const fn is_held(_: &'static Socket) -> bool {
    false
}
pub const fn is_switching(_: &Socket) -> bool {
    false
}
pub const fn is_far(_: &Socket) -> bool {
    false
}
pub const fn finish(_: &'static Socket, _: Reason) {}
pub const fn finish_reading(_: &'static Socket, _: Reason) {}
#[inline(always)]
pub const fn finish_within(_: &'static Socket, _: u64) {}
pub const fn await_return(_: &'static Socket, _: u64) {}
pub const fn release(_: &'static Socket, _: u64) {}
pub const fn answer_calls() {}
pub const fn claim(_: &'static Socket, _: &Half) {}
pub const fn demote(_: &'static Socket, _: Reason) -> bool {
    false
}
pub enum Found {
    Bytes(usize),
    Nothing,
    Ended,
}

pub fn is_lent(_: &Socket) -> bool {
    false
}
pub fn lend(_: &'static Socket, _: &Cursor, _: bool, _: &mut IoWait) -> bool {
    false
}
pub(crate) fn look_at_loan(_: &'static Socket, _: &mut Cursor, _: &mut IoWait) -> Found {
    Found::Ended
}
pub(crate) fn end_loan(_: &'static Socket, _: &mut IoWait) {}
pub(crate) fn revoke_loan(_: Known, _: &mut IoWait) {}
pub fn await_placement(_: &Socket, _: impl Fn() -> bool) {}
pub fn goes_direct(_: &Socket) -> bool {
    false
}
