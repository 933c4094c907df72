//! Links between two processes of one host.

mod link;
mod pool;
pub use link::{Cooled, Link, LinkEnd, PeerProcess, Token, all, by_token, hold, release};
pub use pool::{Lent, Pool};
