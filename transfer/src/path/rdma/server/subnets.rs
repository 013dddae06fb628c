//! Subnets of RDMA devices: those in one subnet reach each other without a router, and rails often have one each.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of the subnet prefix of an InfiniBand address, and of one of IPv6 as they are given out.
const PREFIX: usize = 8;

/// Masks of this host's IPv4 networks: network and mask of each.
#[derive(Debug, Default)]
pub(crate) struct Masks(Vec<(u32, u32)>);

impl Masks {
    /// Reads those of the routes without a gateway. Empty where the system does not tell.
    pub(crate) fn of_this_host() -> Self {
        std::fs::read_to_string("/proc/net/route").map(|routes| Self::parse(&routes)).unwrap_or_default()
    }

    /// Parses /proc/net/route: interface, destination, gateway, flags, three numbers, and the mask, addresses as words in the
    /// processor's order of bytes.
    fn parse(routes: &str) -> Self {
        let route = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let word = |at: usize| Some(u32::from_be(u32::from_str_radix(fields.get(at)?, 16).ok()?));
            let (network, gateway, mask) = (word(1)?, word(2)?, word(7)?);
            (gateway == 0 && mask != 0).then_some((network, mask))
        };
        Self(routes.lines().skip(1).filter_map(route).collect())
    }

    /// Whether the address of a device of this host and that of a peer are in one subnet.
    pub(crate) fn are_near(&self, ours: [u8; 16], theirs: [u8; 16]) -> bool {
        let ipv4 = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_ipv4_mapped().map(Ipv4Addr::to_bits);
        match (ipv4(ours), ipv4(theirs)) {
            (Some(ours), Some(theirs)) => {
                let mask =
                    self.0.iter().filter(|(network, mask)| ours & mask == *network).map(|(_, mask)| *mask);
                mask.max().is_some_and(|mask| ours & mask == theirs & mask)
            }
            (None, None) => ours[..PREFIX] == theirs[..PREFIX],
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str) -> [u8; 16] {
        match address.parse::<Ipv4Addr>() {
            Ok(ipv4) => ipv4.to_ipv6_mapped().octets(),
            Err(_) => address.parse::<Ipv6Addr>().unwrap().octets(),
        }
    }

    #[test]
    fn addresses_are_near_by_the_mask_of_the_network_that_this_host_has() {
        let masks = Masks::parse(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eth0\t00000000\t0101000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             rail0\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             rail1\t0002000A\t00000000\t0001\t0\t0\t0\t80FFFFFF\t0\t0\t0\n",
        );
        let are_near = |ours, theirs| masks.are_near(gid(ours), gid(theirs));
        assert!(are_near("10.0.1.5", "10.0.1.200"));
        assert!(!are_near("10.0.1.5", "10.0.2.5"), "another rail");
        assert!(are_near("10.0.2.5", "10.0.2.100") && !are_near("10.0.2.5", "10.0.2.200"));
        assert!(!are_near("10.9.0.1", "10.9.0.2"), "a network that this host does not have");
        assert!(!Masks::parse("nonsense").are_near(gid("10.0.1.5"), gid("10.0.1.6")));
    }

    #[test]
    fn other_addresses_are_near_by_their_prefix() {
        let are_near = |ours, theirs| Masks::default().are_near(gid(ours), gid(theirs));
        assert!(are_near("2001:db8:1:1::1", "2001:db8:1:1::2"));
        assert!(!are_near("2001:db8:1:1::1", "2001:db8:1:2::1"));
        assert!(!are_near("2001:db8:1:1::1", "10.0.0.1"));
    }
}
