//! Streams of an endpoint: given out, opened, refused and left.

use super::endpoint::Endpoint;
use super::endpoint_state::{EndpointState, Offered, Places};
use super::memory::{self, Use};
use super::pace::{FAR_NS, Path, ReaderPace, WriterPace};
use super::terms::Lost;
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::Errno;
use sluice_runtime::config::{Level, log};
use sluice_stream::pump::{Lent, Opening};
use sluice_stream::record::{Nonce, Role};
use sluice_stream::wire::Immediate;

/// Sets the entry of a stream.
fn note<T>(places: &mut Vec<Option<T>>, stream: u16, place: T) {
    let at = usize::from(stream);
    if places.len() <= at {
        places.resize_with(at + 1, || None);
    }
    if let Some(cell) = places.get_mut(at) {
        *cell = Some(place);
    }
}

impl Endpoint {
    /// Gives a stream out at this end. The peer needs the result to open its own end.
    ///
    /// # Errors
    /// ENOBUFS: no more streams or ring memory; ENOMEM: not both rings of the stream can be
    /// registered; the device's.
    pub fn offer(&self, ring_len: u32, owner: usize) -> Result<Offered, Errno> {
        let [near, _] = self.links().ok_or(libc::ENOTCONN)?;
        memory::learn_budget();
        // An immediate has fewer bits for the number than the arena has slots.
        let count = Immediate::STREAM_COUNT.into();
        let given = near.give_stream_below(count, ring_len, owner);
        let stream = given.ok_or(libc::ENOBUFS)?;
        let placed = self.inside(|inner| {
            let placed = inner.place(near, stream, Use::Lent)?;
            note(&mut inner.lent, stream as u16, placed.0);
            let staging = memory::reserve(placed.1)?;
            note(&mut inner.reserved, stream as u16, staging);
            Ok(placed)
        });
        let placed = placed.unwrap_or(Err(libc::ENOTCONN));
        if placed.is_err() {
            self.withdraw(stream as u16);
        }
        let (place, len) = placed?;
        Ok(Offered {
            stream: stream as u16,
            ring: Lent {
                place: place.remote,
                key: place.remote_key,
                len,
            },
        })
    }

    /// Deregisters memory that no stream uses.
    pub fn trim(&self) {
        self.drop_pages();
        self.inside(|inner| inner.slabs.trim(inner.complete));
    }

    /// Takes back a stream that was offered, before it is opened. The caller knows that the peer
    /// does not write to its ring.
    pub fn withdraw(&self, stream: u16) {
        self.inside(|inner| inner.give_back(stream));
        if let Some([near, far]) = self.links() {
            near.leave_stream(u32::from(stream));
            // `far` never joined the stream: leave its end of the slot, so that the slot is free.
            far.leave_unjoined(u32::from(stream));
        }
    }

    /// Opens a stream that was offered here and whose other end the peer has offered. `owner` as in
    /// [`offer`](Self::offer). On an error the stream is over at this end. If this end's role is
    /// First, the peer has opened the stream already and is told. `path` is the way to the peer.
    ///
    /// # Errors
    /// ENOBUFS: no ring memory; EPROTO: the peer's offer cannot be; the device's.
    pub fn open(
        &self,
        ours: Offered,
        theirs: Offered,
        (role, nonce): (Role, Nonce),
        (tcp_read, path): (u64, Path),
        owner: usize,
    ) -> Result<(), Errno> {
        let index = u32::from(ours.stream);
        let [near, far] = self.links().ok_or(libc::ENOTCONN)?;
        // This end may lock less memory than the peer.
        let most = memory::share().min(memory::most()).max(ours.ring.len);
        // Room for as much as this end lends was reserved.
        let more = theirs.ring.len.min(most).saturating_sub(ours.ring.len);
        let most = if memory::has_room(more.into()) {
            most
        } else {
            ours.ring.len
        };
        let staging_len = theirs.ring.len.min(most);
        let mut opening = Opening {
            role,
            nonce,
            theirs: theirs.stream,
            tcp_read,
            ring_len: ours.ring.len,
            staging_len,
            lent: theirs.ring,
        };
        let fits = theirs.ring.len.is_power_of_two();
        let opened = if fits && far.join_stream(index, staging_len, owner) {
            let opened = self.open_joined(far, &mut opening, (ours.stream, path));
            if opened.is_err() {
                match role {
                    Role::First => {
                        near.leave_stream(index);
                        self.refuse(ours.stream, &opening);
                        return opened;
                    }
                    Role::Second => far.leave_stream(index),
                }
            }
            opened
        } else {
            if role == Role::First {
                self.lose(Lost::Device(0));
            }
            Err(libc::ENOBUFS)
        };
        if opened.is_err() {
            self.withdraw(ours.stream);
        }
        opened
    }

    fn open_joined(
        &self,
        far: &'static Link,
        opening: &mut Opening,
        (stream, path): (u16, Path),
    ) -> Result<(), Errno> {
        // A waiter on the far side, so that the program tells the pump of each change of a cursor.
        if let Some([out, into]) = self.directions(stream) {
            out.rx_wishes.waiters.store(1, Ordering::Relaxed);
            into.tx_wishes.waiters.store(1, Ordering::Relaxed);
        }
        let opened = self.inside(|inner| {
            if inner.lost.is_some() {
                return Err(libc::ENOTCONN);
            }
            let reserved = inner.reserved.get_mut(usize::from(stream));
            drop(reserved.and_then(Option::take));
            let (staging, staging_len) = inner.place(far, u32::from(stream), Use::Staging)?;
            note(&mut inner.staging, stream, staging);
            opening.staging_len = staging_len;
            log(
                Level::Debug,
                format_args!(
                    "stream {stream}: rings of {} and {staging_len} bytes, {} us to go and return, \
                     {} B/s by TCP",
                    opening.ring_len,
                    path.rtt_ns / 1000,
                    path.tcp_rate
                ),
            );
            inner.pump.open(stream, opening).map_err(|_| libc::EPROTO)?;
            if path.rtt_ns >= FAR_NS
                && let Some(transit) = inner.pump.transit(stream)
            {
                transit.set_patient();
            }
            let place = Places {
                staging,
                staging_len,
                tail: 0,
                head: 0,
                lent_len: opening.ring_len,
                reader: ReaderPace::new(path),
                writer: WriterPace::new(path),
            };
            note(&mut inner.places, stream, place);
            Ok(())
        });
        opened.unwrap_or(Err(libc::ENOTCONN))
    }

    /// Leaves a stream at once that the peer has opened and this end cannot open.
    fn refuse(&self, stream: u16, opening: &Opening) {
        let tells = |inner: &mut EndpointState| {
            inner.lost.is_some() || inner.pump.open(stream, opening).is_ok()
        };
        if self.inside(tells) != Some(true) {
            self.lose(Lost::Device(0));
        }
        self.leave(stream);
    }

    /// The program has left the stream, after [`Link::leave_stream`].
    pub fn leave(&self, stream: u16) {
        let mut free = true;
        self.work(true, |_, inner| {
            if let Some(place) = inner.places.get_mut(usize::from(stream)) {
                *place = None;
            }
            free = inner.pump.close(stream) || inner.lost.is_some();
            inner.release_pages(stream, u64::MAX);
            Ok(())
        });
        let by_both = if free { ", as its peer has" } else { "" };
        log(
            Level::Debug,
            format_args!("stream {stream} was left{by_both}"),
        );
        if free {
            self.inside(|inner| inner.give_back(stream));
            self.forget(stream);
        }
    }

    /// As [`leave`](Self::leave), for a stream of whose opening the peer has never heard.
    pub fn discard(&self, stream: u16) {
        self.work(true, |_, inner| {
            if let Some(place) = inner.places.get_mut(usize::from(stream)) {
                *place = None;
            }
            inner.pump.discard(stream);
            inner.give_back(stream);
            Ok(())
        });
        self.forget(stream);
    }

    /// Frees the number of the stream on this end's link.
    pub(crate) fn forget(&self, stream: u16) {
        if let Some([_, far]) = self.links() {
            far.leave_stream(u32::from(stream));
        }
    }
}
