//! Links between two processes of one host.

mod link;
mod pool;
pub use link::{Link, LinkEnd, Token, all, by_token, hold, release};
pub use pool::{Lent, Pool};
