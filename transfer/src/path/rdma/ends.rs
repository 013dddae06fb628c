//! The ends of queue pairs, as their peers hear of them.

use mc_verbs::{Address, LinkLayer, Path, QueuePair};

use crate::control::wire::End;

/// The end of a queue pair. `device` is a number that [`End::device`] explains.
pub(crate) fn end_of(pair: &QueuePair, reads_at_once: u8, device: u16) -> End {
    let link = link(pair.path());
    let Address { pair, first_packet, lid, gid, mtu } = pair.address();
    End { link, reads_at_once, device, pair, first_packet, mtu, lid, gid }
}

/// Number of the kind of link of a path in an end.
pub(crate) fn link(path: Path) -> u8 {
    match path.link {
        LinkLayer::InfiniBand => 0,
        LinkLayer::Ethernet => 1,
    }
}

impl From<&End> for Address {
    fn from(end: &End) -> Self {
        let End { pair, first_packet, mtu, lid, gid, .. } = *end;
        Self { pair, first_packet, lid, gid, mtu }
    }
}
