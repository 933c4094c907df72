//! Subnets, and the mapping of a host's address to its address in another subnet.

use core::net::IpAddr;

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    first: IpAddr,
    /// Length of the prefix.
    bits: u8,
}

/// The address as a number in the upper bits, and its length in bits. v4-mapped addresses are v4.
fn number(address: IpAddr) -> (u128, u32) {
    match address.to_canonical() {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

impl Subnet {
    /// Mask of the bits after the prefix.
    fn host(self) -> u128 {
        u128::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0)
    }

    /// True if the address is in the subnet.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let ((ours, len), (other, other_len)) = (number(self.first), number(address));
        len == other_len && (ours ^ other) & !self.host() == 0
    }

    /// The address that is in this subnet what `address` is in `from`, of as many addresses.
    fn place_of(self, address: IpAddr, from: Self) -> IpAddr {
        let (ours, len) = number(self.first);
        let (other, other_len) = number(address);
        // Aligned at the end, if the families differ.
        let other = (other & from.host()) >> (128 - other_len) << (128 - len);
        let bits = ours & !self.host() | other & self.host();
        match self.first.to_canonical() {
            // The upper 32 bits.
            IpAddr::V4(_) => IpAddr::V4(((bits >> 96) as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(bits.into()),
        }
    }

    /// Parses `10.0.0.0/8`, `fd00::/16`, or one address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().ok()?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most)?,
            None => most,
        };
        Some(Self { first, bits })
    }
}

/// Parses `SUBNET=SUBNET`; the second must have room for the addresses of the first.
pub(crate) fn parse_pair(text: &str) -> Option<(Subnet, Subnet)> {
    let (from, to) = text.split_once('=')?;
    let (from, to) = (Subnet::parse(from)?, Subnet::parse(to)?);
    let rest = |s: Subnet| number(s.first).1 - u32::from(s.bits);
    (rest(from) <= rest(to)).then_some((from, to))
}

/// Parses the items of a list that commas separate.
pub fn list<T>(value: &[u8], parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let value = core::str::from_utf8(value).ok()?;
    value.split(',').map(parse).collect()
}

/// A host's address for RDMA: by the first pair that has this address, else the same.
#[must_use]
pub fn mapped(map: &[(Subnet, Subnet)], address: IpAddr) -> IpAddr {
    map.iter()
        .find(|(from, _)| from.contains(address))
        .map_or(address, |(from, to)| to.place_of(address, *from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_has_its_addresses() {
        for (subnet, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.2"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("fd00::/16", "fd00:1::2", "fd01::"),
            ("::/0", "fe80::1", "1.2.3.4"),
            ("192.168.4.0/22", "::ffff:192.168.7.9", "192.168.8.0"),
        ] {
            let subnet = Subnet::parse(subnet).unwrap();
            assert!(subnet.contains(at(inside)), "{inside}");
            assert!(!subnet.contains(at(outside)), "{outside}");
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "a/1",
            "10.0.0.0/",
        ] {
            assert_eq!(Subnet::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_host_has_the_same_place_in_the_other_subnet() {
        let map = list(
            b"10.1.0.0/16=192.168.0.0/16,10.2.0.0/24=fd00::/64,fd01::/64=fd02::/64",
            parse_pair,
        )
        .unwrap();
        for (tcp, rdma) in [
            ("10.1.3.4", "192.168.3.4"),
            ("10.2.0.9", "fd00::9"),
            ("fd01::abcd", "fd02::abcd"),
            ("10.3.0.1", "10.3.0.1"),
        ] {
            assert_eq!(mapped(&map, at(tcp)), at(rdma));
        }
        assert_eq!(parse_pair("10.0.0.0/8=192.168.0.0/16"), None);
        assert_eq!(list(b"10.0.0.0/8", parse_pair), None);
    }
}
