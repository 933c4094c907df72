//! What is proved by the digests: an HMAC-SHA256 under one of each direction.

use super::with_tracks;
use crate::digests::{DIGEST, Track};
use crate::socket::{Socket, role};
use core::sync::atomic::Ordering;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How far each direction is known here, written and read: 1 + the power of two of the last digest,
/// 0 for none. Any number up to that can be agreed on.
///
/// Like [`prove`], [`verify`] and [`secret`] it takes the rx lock for a moment, and speaks of
/// whatever connection the structure is of now: the caller compares generations after it.
pub fn reach(sock: &'static Socket) -> (u8, u8) {
    with_tracks(sock, |tracks| {
        let taken = |track: &Track| track.taken.load(Ordering::Acquire);
        Some((taken(&tracks.tx), taken(&tracks.rx)))
    })
    .unwrap_or((0, 0))
}

/// This end's proof over `message`, whose parts are told apart: both ends must divide it alike. The
/// key is the first bytes of both directions, up to what `out_k` of those written here and `in_k`
/// of those read stand for, as [`reach`] says it. `None` where that far is not known, or nothing is
/// agreed on.
pub fn prove(sock: &'static Socket, out_k: u8, in_k: u8, message: &[&[u8]]) -> Option<[u8; 16]> {
    let own = sock.role.load(Ordering::Relaxed);
    Some(first_half(mac(sock, out_k, in_k, PROOF, own, message)?))
}

/// Is this the other end's proof over `message`? Its own, given back to an end, is not. In constant
/// time.
pub fn verify(
    sock: &'static Socket,
    out_k: u8,
    in_k: u8,
    message: &[&[u8]],
    proof: &[u8; 16],
) -> bool {
    let other = match sock.role.load(Ordering::Relaxed) {
        role::CONNECTING => role::ACCEPTED,
        role::ACCEPTED => role::CONNECTING,
        _ => return false,
    };
    mac(sock, out_k, in_k, PROOF, other, message)
        .is_some_and(|mac| mac.verify_truncated_left(proof).is_ok())
}

/// What both ends know and nobody else: the same at both for the same `message`, and nothing that a
/// proof tells.
pub fn secret(sock: &'static Socket, out_k: u8, in_k: u8, message: &[&[u8]]) -> Option<[u8; 16]> {
    let nobody = role::UNKNOWN;
    Some(first_half(mac(sock, out_k, in_k, SECRET, nobody, message)?))
}

/// What a code is for.
const PROOF: &[u8; 16] = b"sluice 1 proof\0\0";
/// See [`PROOF`].
const SECRET: &[u8; 16] = b"sluice 1 secret\0";

fn first_half(mac: Hmac<Sha256>) -> [u8; 16] {
    let whole = mac.finalize().into_bytes();
    whole.first_chunk().copied().unwrap_or_default()
}

/// The code over `message` for a purpose and an end. First comes what the connecting end wrote, in
/// key and message.
fn mac(
    sock: &'static Socket,
    out_k: u8,
    in_k: u8,
    purpose: &[u8; 16],
    end: u8,
    message: &[&[u8]],
) -> Option<Hmac<Sha256>> {
    if out_k == 0 && in_k == 0 {
        return None;
    }
    let role = sock.role.load(Ordering::Relaxed);
    let (written, read) = with_tracks(sock, |tracks| {
        Some((tracks.tx.digest(out_k)?, tracks.rx.digest(in_k)?))
    })?;
    let (first, second) = match role {
        role::CONNECTING => ((out_k, written), (in_k, read)),
        role::ACCEPTED => ((in_k, read), (out_k, written)),
        _ => return None,
    };
    let mut key = [0; 2 * DIGEST];
    for (to, from) in key.iter_mut().zip(first.1.iter().chain(&second.1)) {
        *to = *from;
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(purpose);
    mac.update(&[first.0, second.0, end]);
    for part in message {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}
