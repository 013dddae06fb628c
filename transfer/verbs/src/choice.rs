//! The choice of a port and an address of a device. Pure: it decides from what the system reports.

use std::fmt;
use std::net::Ipv6Addr;

/// A port of a device, as the system reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, from 1 on.
    pub number: u8,
    /// State.
    pub state: PortState,
    /// Kind of its network.
    pub link: LinkLayer,
    /// Maximum bytes of a packet's payload at present: 256, 512, 1024, 2048 or 4096.
    pub active_mtu: u32,
    /// Local identifier on an InfiniBand network; 0 elsewhere.
    pub lid: u16,
    /// Addresses, in the order of their indexes.
    pub gids: Vec<Gid>,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The port carries packets.
    Active,
    /// The port carries no packets; the text is the name of its state.
    Not(&'static str),
}

/// Kind of a port's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u8,
    /// Protocol.
    pub kind: GidKind,
    /// The address itself; an IPv4 address is mapped into IPv6.
    pub bytes: [u8; 16],
}

/// Protocol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1, which does not pass routers.
    RoceV1,
    /// RoCE version 2, over UDP.
    RoceV2,
}

/// Options asked for at a device; everything else is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Number of the port.
    pub port: Option<u8>,
    /// Index of the address.
    pub gid_index: Option<u8>,
}

/// Marks of the packets of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
}

/// The way out of a device: what a queue pair is connected through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Number of the port.
    pub port: u8,
    /// Kind of its network.
    pub link: LinkLayer,
    /// Local identifier of the port.
    pub lid: u16,
    /// Address.
    pub gid: Gid,
    /// Maximum bytes of a packet's payload.
    pub mtu: u32,
    /// Marks of the packets.
    pub marks: Marks,
}

/// The chosen path, and why, in words for people: one line for each port and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path; `None` when nothing can be used.
    pub path: Option<Path>,
    /// One line for each port and address: taken or left, and the reason.
    pub reasons: Vec<String>,
}

/// Preference of an address; the largest is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Unusable,
    LinkLocal,
    V1,
    Ipv6,
    Ipv4,
    InfiniBand,
}

impl Gid {
    fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.bytes)
    }

    fn rank(&self, link: LinkLayer) -> (Rank, &'static str) {
        let address = self.address();
        match (link, self.kind) {
            _ if address.is_unspecified() => (Rank::Unusable, "it is empty"),
            (LinkLayer::InfiniBand, GidKind::InfiniBand) => {
                (Rank::InfiniBand, "the port's InfiniBand address")
            }
            (LinkLayer::InfiniBand, _) | (LinkLayer::Ethernet, GidKind::InfiniBand) => {
                (Rank::Unusable, "it is not of the port's network")
            }
            (_, GidKind::RoceV1) => (Rank::V1, "RoCE v1 passes no router"),
            (_, GidKind::RoceV2) if address.to_ipv4_mapped().is_some() => {
                (Rank::Ipv4, "RoCE v2 with an IPv4 address")
            }
            (_, GidKind::RoceV2) if address.is_unicast_link_local() => {
                (Rank::LinkLocal, "a link-local address passes no router")
            }
            (_, GidKind::RoceV2) => (Rank::Ipv6, "RoCE v2 with an IPv6 address"),
        }
    }
}

/// Chooses the port and the address of a device.
///
/// The first active port that has an address is taken. On Ethernet, RoCE v2 goes before v1, and an address that is routed
/// before one that is not: link-local addresses come last, because two hosts agree on nothing else about them.
#[must_use]
pub fn choose(ports: &[Port], wanted: Wanted) -> Choice {
    let (mut path, mut reasons) = (None, Vec::new());
    if ports.is_empty() {
        reasons.push("the device has no port".to_owned());
    }
    for port in ports {
        let name = format!("port {} ({})", port.number, port.link);
        match port.state {
            PortState::Not(state) => {
                reasons.push(format!("{name}: left, it is {state}: check the cable and `rdma link`"));
                continue;
            }
            PortState::Active if wanted.port.is_some_and(|wanted| wanted != port.number) => {
                reasons.push(format!("{name}: left, another one was asked for"));
                continue;
            }
            PortState::Active if path.is_some() => {
                reasons.push(format!("{name}: left, another port comes first"));
                continue;
            }
            PortState::Active => {}
        }
        // Among equals, the first one is chosen.
        let is_wanted = |gid: &&Gid| wanted.gid_index.is_none_or(|wanted| wanted == gid.index);
        let best = port.gids.iter().rev().filter(is_wanted).max_by_key(|gid| gid.rank(port.link).0);
        let best = best.filter(|gid| gid.rank(port.link).0 > Rank::Unusable);
        for gid in &port.gids {
            let verdict = if Some(gid) == best { "taken" } else { "left" };
            let why = if is_wanted(&gid) { gid.rank(port.link).1 } else { "another one was asked for" };
            reasons.push(format!("{name}, gid {} {gid}: {verdict}, {why}", gid.index));
        }
        match best {
            Some(gid) => {
                reasons.push(format!("{name}: taken, active, packets of {} bytes", port.active_mtu));
                let Port { number, link, lid, active_mtu, .. } = *port;
                path = Some(Path {
                    port: number,
                    link,
                    lid,
                    gid: *gid,
                    mtu: active_mtu,
                    marks: Marks::default(),
                });
            }
            None if wanted.gid_index.is_some() => {
                reasons.push(format!("{name}: left, it has no such address"));
            }
            None => {
                reasons.push(format!("{name}: left, it has no address: give its interface an IP address"));
            }
        }
    }
    if path.is_none() {
        reasons.extend(wanted.port.map(|port| format!("port {port} was asked for")));
        reasons.extend(wanted.gid_index.map(|index| format!("an address with index {index} was asked for")));
    }
    Choice { path, reasons }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        match self.address().to_ipv4_mapped() {
            Some(ipv4) => write!(f, "{ipv4} ({kind})"),
            None => write!(f, "{} ({kind})", self.address()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, kind: GidKind, address: &str) -> Gid {
        Gid { index, kind, bytes: address.parse::<Ipv6Addr>().unwrap().octets() }
    }

    fn port(number: u8, gids: Vec<Gid>) -> Port {
        let (state, link) = (PortState::Active, LinkLayer::Ethernet);
        Port { number, state, link, active_mtu: 4096, lid: 0, gids }
    }

    fn taken(gids: Vec<Gid>) -> Option<u8> {
        choose(&[port(1, gids)], Wanted::default()).path.map(|path| path.gid.index)
    }

    #[test]
    fn an_address_that_is_routed_comes_before_one_that_is_not() {
        use GidKind::{RoceV1, RoceV2};
        let local = gid(0, RoceV2, "fe80::1");
        let old = gid(1, RoceV1, "::ffff:10.9.0.1");
        let ipv6 = gid(2, RoceV2, "2001:db8::1");
        let ipv4 = gid(3, RoceV2, "::ffff:10.9.0.1");
        let second = gid(4, RoceV2, "::ffff:10.9.0.2");
        assert_eq!(taken(vec![local, old, ipv6, ipv4, second]), Some(3), "of equals the first");
        assert_eq!(taken(vec![local, old, ipv6]), Some(2));
        assert_eq!(taken(vec![local, old]), Some(1));
        assert_eq!(taken(vec![local]), Some(0));
        assert_eq!(taken(vec![gid(0, RoceV2, "::")]), None);
        assert_eq!(taken(vec![]), None);
    }

    #[test]
    fn a_port_and_an_address_that_are_asked_for_are_taken_or_none() {
        let lan = gid(1, GidKind::RoceV2, "::ffff:10.9.0.1");
        let other = gid(2, GidKind::RoceV2, "2001:db8::1");
        let ports = [port(1, vec![lan, other]), port(2, vec![lan, other])];
        let taken = |wanted| choose(&ports, wanted).path.map(|path| (path.port, path.gid.index));
        assert_eq!(taken(Wanted { port: Some(2), gid_index: None }), Some((2, 1)));
        assert_eq!(taken(Wanted { port: None, gid_index: Some(2) }), Some((1, 2)));
        for (wanted, missing) in [
            (Wanted { port: Some(3), gid_index: None }, "port 3 was asked for"),
            (Wanted { port: None, gid_index: Some(7) }, "an address with index 7 was asked for"),
        ] {
            let Choice { path, reasons } = choose(&ports, wanted);
            assert_eq!((path, reasons.last().map(String::as_str)), (None, Some(missing)));
        }
        let reasons = choose(&ports, Wanted { port: Some(2), gid_index: Some(2) }).reasons.join("\n");
        assert!(reasons.contains("port 1 (Ethernet): left, another one was asked for"), "{reasons}");
        assert!(reasons.contains("gid 1 10.9.0.1 (RoCE v2): left, another one was asked for"), "{reasons}");
    }

    #[test]
    fn the_first_active_port_with_an_address_is_taken_and_each_reason_is_told() {
        let down = Port { state: PortState::Not("down"), ..port(1, vec![]) };
        let lan = gid(1, GidKind::RoceV2, "::ffff:10.9.0.1");
        let infiniband = Port {
            link: LinkLayer::InfiniBand,
            lid: 7,
            ..port(4, vec![gid(0, GidKind::InfiniBand, "fe80::2")])
        };
        let choose = |ports: &[Port]| super::choose(ports, Wanted::default());
        let choice = choose(&[down.clone(), port(2, vec![]), port(3, vec![lan]), infiniband.clone()]);
        assert_eq!(choice.path.map(|path| (path.port, path.gid, path.mtu)), Some((3, lan, 4096)));
        let text = choice.reasons.join("\n");
        for said in [
            "port 1 (Ethernet): left, it is down",
            "port 2 (Ethernet): left, it has no address",
            "10.9.0.1 (RoCE v2): taken",
            "port 4 (InfiniBand): left, another",
        ] {
            assert!(text.contains(said), "{said} is not in:\n{text}");
        }
        assert_eq!(choose(&[infiniband]).path.map(|path| (path.lid, path.gid.index)), Some((7, 0)));
        assert_eq!(choose(&[down]).path, None);
        assert_eq!(choose(&[]).reasons, ["the device has no port"]);
    }
}
