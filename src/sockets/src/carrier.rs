//! What carries a socket's stream.

use crate::socket::Socket;
use sluice_transport::Carrier;

impl Socket {
    /// What carries the stream in use, or would carry one within the host where there is none.
    #[inline]
    pub fn carrier(&self) -> &'static Carrier {
        self.link().map_or(Carrier::here(), Carrier::of)
    }
}
