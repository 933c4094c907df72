//! The policy for single connections: which stay on TCP, and how many may leave it.

use super::Config;
use crate::subnet::Subnet;
use core::net::{IpAddr, SocketAddr};

/// Which end of a connection a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It accepted.
    Server,
    /// It connected.
    Client,
}

/// A section `[leave]` or `[accelerate]`. It applies to connections that meet all its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// They stay on TCP.
    pub leaves: bool,
    /// `None`: either.
    pub side: Option<Side>,
    /// Of the peer; empty: any.
    pub addresses: Vec<Subnet>,
    /// Of the end that accepted, as ranges with both bounds; empty: any.
    pub ports: Vec<(u16, u16)>,
}

impl Rule {
    /// A rule for all connections.
    pub(super) const fn new(leaves: bool) -> Self {
        Self {
            leaves,
            side: None,
            addresses: Vec::new(),
            ports: Vec::new(),
        }
    }

    fn fits(&self, side: Side, address: IpAddr, port: u16) -> bool {
        self.side.is_none_or(|asked| asked == side)
            && (self.addresses.is_empty() || self.addresses.iter().any(|s| s.contains(address)))
            && (self.ports.is_empty() || self.ports.iter().any(|&(a, b)| (a..=b).contains(&port)))
    }
}

impl Config {
    /// True if the first rule that applies leaves this connection on TCP.
    #[must_use]
    pub fn leaves(&self, side: Side, local: SocketAddr, peer: SocketAddr) -> bool {
        let port = match side {
            Side::Server => local.port(),
            Side::Client => peer.port(),
        };
        let first = self.rules.iter().find(|r| r.fits(side, peer.ip(), port));
        first.is_some_and(|rule| rule.leaves)
    }

    /// True if one more connection may leave TCP, beside `count` whose rings have `bytes` together.
    #[must_use]
    pub fn allows(&self, count: u64, bytes: u64) -> bool {
        self.connections.is_none_or(|most| count < most)
            && self
                .memory
                .is_none_or(|most| bytes + Self::RING_LEAST <= most)
    }

    /// Greatest ring length of one more connection, beside rings of `bytes` together.
    #[must_use]
    pub fn ring_beside(&self, bytes: u64) -> u32 {
        let left = self
            .memory
            .map_or(u64::MAX, |most| most.saturating_sub(bytes));
        // A power of two, and at least the shortest: `allows` has checked that there is room at
        // all.
        let fits = left.clamp(Self::RING_LEAST, u64::from(self.ring_len));
        1 << fits.ilog2()
    }

    /// The shortest ring, in bytes.
    const RING_LEAST: u64 = 4 << 10;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(rules: &[Rule], side: Side, local: &str, peer: &str) -> bool {
        let config = Config {
            rules: rules.to_vec(),
            ..Config::DEFAULT
        };
        config.leaves(side, local.parse().unwrap(), peer.parse().unwrap())
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let near = Rule {
            addresses: vec![Subnet::parse("10.1.0.0/16").unwrap()],
            ..Rule::new(false)
        };
        let rules = [near, Rule::new(true)];
        let leaves = |peer| leaves(&rules, Side::Client, "10.1.0.1:4000", peer);
        assert!(!leaves("10.1.2.3:80"));
        assert!(leaves("10.2.2.3:80"));
        assert!(leaves("[fd00::1]:80"));
    }

    #[test]
    fn without_a_rule_all_are_accelerated() {
        assert!(!leaves(&[], Side::Server, "[::1]:80", "[::1]:5"));
    }

    #[test]
    fn a_port_is_that_of_the_end_that_accepted() {
        let rules = [Rule {
            ports: vec![(80, 80), (8000, 8099)],
            ..Rule::new(true)
        }];
        assert!(leaves(&rules, Side::Server, "1.1.1.1:80", "1.1.1.2:9"));
        assert!(leaves(&rules, Side::Client, "1.1.1.1:9", "1.1.1.2:8099"));
        assert!(!leaves(&rules, Side::Client, "1.1.1.1:80", "1.1.1.2:9"));
        assert!(!leaves(&rules, Side::Server, "1.1.1.1:8100", "1.1.1.2:80"));
    }

    #[test]
    fn a_rule_is_for_one_side_or_for_both() {
        let servers = Rule {
            side: Some(Side::Server),
            ..Rule::new(true)
        };
        let rules = [servers];
        assert!(leaves(&rules, Side::Server, "1.1.1.1:80", "1.1.1.2:9"));
        assert!(!leaves(&rules, Side::Client, "1.1.1.1:80", "1.1.1.2:9"));
    }

    #[test]
    fn limits_hold_what_they_say() {
        let config = Config {
            connections: Some(2),
            memory: Some(300 << 10),
            ..Config::DEFAULT
        };
        assert!(config.allows(1, 0) && !config.allows(2, 0));
        assert!(config.allows(1, 296 << 10) && !config.allows(1, 297 << 10));
        assert_eq!(config.ring_beside(0), 256 << 10);
        assert_eq!(config.ring_beside(256 << 10), 32 << 10);
        assert_eq!(config.ring_beside(299 << 10), 4 << 10);
        assert_eq!(Config::DEFAULT.ring_beside(1 << 40), 256 << 10);
        assert!(Config::DEFAULT.allows(1 << 40, 1 << 40));
    }
}
