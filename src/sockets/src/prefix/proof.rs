//! Proofs by the digests: an HMAC-SHA256 under one digest of each direction.

use super::with_tracks;
use crate::digests::{DIGEST, Track};
use crate::socket::{Socket, role};
use core::sync::atomic::Ordering;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How many digests of what was written and read are known here, per direction: 1 + the power of
/// two of the last, or 0 for none. The ends may agree on any number up to that.
///
/// Like [`prove`], [`verify`] and [`secret`], takes the rx lock for a moment, and concerns the
/// connection that the structure has now: the caller compares generations afterwards.
pub fn reach(sock: &'static Socket) -> (u8, u8) {
    with_tracks(sock, |tracks| {
        let taken = |track: &Track| track.taken.load(Ordering::Acquire);
        Some((taken(&tracks.tx), taken(&tracks.rx)))
    })
    .unwrap_or((0, 0))
}

/// This end's proof over `message`; both ends must divide it into the same parts. The key is made
/// of digest `out_k` of what was written here and `in_k` of what was read, see [`reach`]. `None` if
/// they are not known, or both are 0.
pub fn prove(sock: &'static Socket, out_k: u8, in_k: u8, message: &[&[u8]]) -> Option<[u8; 16]> {
    let own = sock.role.load(Ordering::Relaxed);
    Some(first_half(mac(sock, out_k, in_k, PROOF, own, message)?))
}

/// Returns whether `proof` is the other end's over `message`. An end's own proof, reflected, is
/// not. Constant time.
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

/// A secret that only both ends know: equal at both for the same `message`, and not derivable from
/// a proof.
pub fn secret(sock: &'static Socket, out_k: u8, in_k: u8, message: &[&[u8]]) -> Option<[u8; 16]> {
    let nobody = role::UNKNOWN;
    Some(first_half(mac(sock, out_k, in_k, SECRET, nobody, message)?))
}

/// Purposes of an HMAC.
const PROOF: &[u8; 16] = b"sluice 1 proof\0\0";
/// See [`PROOF`].
const SECRET: &[u8; 16] = b"sluice 1 secret\0";

fn first_half(mac: Hmac<Sha256>) -> [u8; 16] {
    let whole = mac.finalize().into_bytes();
    whole.first_chunk().copied().unwrap_or_default()
}

/// The HMAC over `message` for a purpose and an end. What the connecting end wrote comes first, in
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
