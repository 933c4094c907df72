//! Queue pairs for direct transfers. The end that answered the link's dial listens once more, on a
//! port that it tells over the link, and the other end dials that port.

use super::{DIAL_MS, DIAL_NS, Hosts};
use crate::hosts::hello::VERSION;
use core::net::SocketAddr;
use sluice_fabric::sys;
use sluice_fabric::verbs::cm::{Id, Key};
use sluice_runtime::config::config;
use sluice_runtime::subnet;
use sluice_stream::wire::DirectQp;

/// Private data of the connection request: version, six zero bytes, the cookie told over the link.
const REQUEST_LEN: usize = 24;

#[derive(Debug)]
enum Stage {
    /// Listens until it is dropped.
    Listening(#[allow(dead_code, reason = "an id listens as long as it is")] Id),
    Resolving(Id),
    Routing(Id),
    Connecting,
    Stands,
}

/// A queue pair that is being connected, or is.
#[derive(Debug)]
pub struct Seek {
    key: Key,
    /// The key of the endpoint.
    of: Key,
    stage: Stage,
    cookie: [u8; 16],
    until: u64,
}

impl Seek {
    pub fn is_of(&self, endpoint: Key) -> bool {
        self.of == endpoint
    }

    /// When it must be connected.
    pub fn until(&self) -> Option<u64> {
        (!matches!(self.stage, Stage::Stands)).then_some(self.until)
    }
}

fn request(cookie: &[u8; 16]) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let parts = VERSION.to_le_bytes().into_iter().chain([0; 6]);
    for (to, from) in bytes.iter_mut().zip(parts.chain(*cookie)) {
        *to = from;
    }
    bytes
}

/// True if private data is [`request`]'s. A connection manager may have padded it.
fn asks(data: &[u8], cookie: &[u8; 16]) -> bool {
    data.get(..REQUEST_LEN) == Some(request(cookie).as_slice())
}

impl Hosts {
    pub(crate) fn is_direct_qp(&self, key: Key) -> bool {
        self.direct_qps.iter().any(|seek| seek.key == key)
    }

    /// The peer, or this end, wants a queue pair; or it has failed.
    pub(crate) fn on_direct_qp(&mut self, endpoint: Key, said: Option<DirectQp>) {
        let Some(up) = self.up(endpoint).filter(|up| !up.lost) else {
            return;
        };
        let (answers, up) = (up.answers, up.endpoint);
        let (failed, wanted) = up.direct_qp_news();
        if failed {
            self.direct_qps.retain(|seek| !seek.is_of(endpoint));
            up.end_direct_qp();
        }
        match said {
            Some(DirectQp { port: 0, .. }) if answers => self.listen_direct_qp(endpoint),
            Some(direct_qp) if direct_qp.port != 0 && !answers => {
                self.dial_direct_qp(endpoint, &direct_qp)
            }
            Some(_) => {}
            None if wanted && answers => self.listen_direct_qp(endpoint),
            None if wanted => {
                let cookie = [0; 16];
                up.with(|pump| pump.want(DirectQp { port: 0, cookie }));
            }
            None => {}
        }
    }

    /// Addresses of the link: this end's, and the peer's.
    fn ends(&self, endpoint: Key) -> Option<[core::net::IpAddr; 2]> {
        let up = self.up(endpoint)?;
        Some([up.local, up.host].map(|ip| subnet::mapped(&config().map, ip)))
    }

    fn listen_direct_qp(&mut self, endpoint: Key) {
        if self.direct_qps.iter().any(|seek| seek.is_of(endpoint)) {
            return;
        }
        let (Some([local, _]), key) = (self.ends(endpoint), self.key()) else {
            return;
        };
        let mut cookie = [0; 16];
        let listening = sys::random(&mut cookie)
            .and_then(|()| Id::listen(&self.channel, key, SocketAddr::new(local, 0)));
        let Ok(id) = listening else {
            return self.end_direct_qp(endpoint);
        };
        let port = id.port();
        self.direct_qps.push(Seek {
            key,
            of: endpoint,
            stage: Stage::Listening(id),
            cookie,
            until: sys::now_ns() + 2 * DIAL_NS,
        });
        if let Some(up) = self.up(endpoint) {
            up.endpoint
                .with(|pump| pump.want(DirectQp { port, cookie }));
        }
    }

    fn dial_direct_qp(&mut self, endpoint: Key, direct_qp: &DirectQp) {
        if self.direct_qps.iter().any(|seek| seek.is_of(endpoint)) {
            return;
        }
        let (Some([local, peer]), key) = (self.ends(endpoint), self.key()) else {
            return;
        };
        let (from, to) = (
            SocketAddr::new(local, 0),
            SocketAddr::new(peer, direct_qp.port),
        );
        match Id::dial(&self.channel, key, Some(from), to, DIAL_MS) {
            Ok(id) => self.direct_qps.push(Seek {
                key,
                of: endpoint,
                stage: Stage::Resolving(id),
                cookie: direct_qp.cookie,
                until: sys::now_ns() + DIAL_NS,
            }),
            Err(_) => self.end_direct_qp(endpoint),
        }
    }

    fn end_direct_qp(&self, endpoint: Key) {
        if let Some(up) = self.up(endpoint) {
            up.endpoint.end_direct_qp();
        }
    }

    fn take_direct_qp(&mut self, key: Key) -> Option<Seek> {
        let at = self.direct_qps.iter().position(|seek| seek.key == key)?;
        Some(self.direct_qps.swap_remove(at))
    }

    pub(crate) fn on_direct_qp_resolved(&mut self, key: Key) {
        let Some(mut seek) = self.take_direct_qp(key) else {
            return;
        };
        match seek.stage {
            Stage::Resolving(id) if id.route(DIAL_MS).is_ok() => {
                seek.stage = Stage::Routing(id);
                self.direct_qps.push(seek);
            }
            _ => self.end_direct_qp(seek.of),
        }
    }

    pub(crate) fn on_direct_qp_routed(&mut self, key: Key) {
        let Some(mut seek) = self.take_direct_qp(key) else {
            return;
        };
        let endpoint = self.up(seek.of).map(|up| up.endpoint);
        let (Stage::Routing(id), Some(endpoint)) = (seek.stage, endpoint) else {
            return;
        };
        let connected = endpoint.begin_direct_qp(id).and_then(|()| {
            let asked = endpoint.with_direct_qp(|id| id.connect(&request(&seek.cookie)));
            asked.unwrap_or(Err(libc::ENOTCONN))
        });
        if connected.is_err() {
            return self.end_direct_qp(seek.of);
        }
        seek.stage = Stage::Connecting;
        self.direct_qps.push(seek);
    }

    pub(crate) fn on_direct_qp_asked(&mut self, listener: Key, id: Id, data: &[u8]) {
        let Some(at) = self.direct_qps.iter().position(|seek| seek.key == listener) else {
            return;
        };
        let Some(seek) = self.direct_qps.get(at) else {
            return;
        };
        if !asks(data, &seek.cookie) || !matches!(seek.stage, Stage::Listening(_)) {
            let _ = id.refuse(&[]);
            return;
        }
        let of = seek.of;
        let key = self.key();
        id.set_key(key);
        let endpoint = self.up(of).map(|up| up.endpoint);
        let accepted = endpoint.map_or(Err(libc::ENOTCONN), |endpoint| {
            endpoint.begin_direct_qp(id)?;
            let accepted = endpoint.with_direct_qp(|id| id.accept(&[]));
            accepted.unwrap_or(Err(libc::ENOTCONN))
        });
        if let Some(seek) = self.direct_qps.get_mut(at) {
            // Only once: the listener is gone.
            (seek.key, seek.stage) = (key, Stage::Connecting);
        }
        if accepted.is_err() {
            self.on_direct_qp_over(key);
        }
    }

    pub(crate) fn on_direct_qp_stands(&mut self, key: Key) {
        let Some(seek) = self.direct_qps.iter_mut().find(|seek| seek.key == key) else {
            return;
        };
        seek.stage = Stage::Stands;
        let of = seek.of;
        if let Some(up) = self.up(of) {
            sluice_runtime::config::log(
                sluice_runtime::config::Level::Debug,
                format_args!("direct transfers with {}", up.host),
            );
            up.endpoint.direct_qp_stands();
        }
    }

    pub(crate) fn on_direct_qp_over(&mut self, key: Key) {
        if let Some(seek) = self.take_direct_qp(key) {
            self.end_direct_qp(seek.of);
        }
    }

    pub(crate) fn expire_direct_qps(&mut self, now: u64) {
        let late = |seek: &Seek| seek.until().is_some_and(|until| now >= until);
        while let Some(key) = self
            .direct_qps
            .iter()
            .find(|seek| late(seek))
            .map(|seek| seek.key)
        {
            self.on_direct_qp_over(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_other_bytes_is_refused() {
        let cookie = core::array::from_fn(|i| i as u8 | 0x80);
        let good = request(&cookie);
        assert!(asks(&good, &cookie));
        assert!(asks(&[good.as_slice(), &[0; 124]].concat(), &cookie));
        for bit in 0..8 * REQUEST_LEN {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!asks(&bytes, &cookie), "bit {bit}");
        }
        for len in 0..REQUEST_LEN {
            assert!(!asks(&good[..len], &cookie), "{len} bytes");
        }
        assert!(!asks(&good, &[0; 16]));
    }
}
