use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mc_types::HostPort;

use mc_log::MasterNode;

/// The addresses that a master's listeners are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundAddresses {
    /// Address of the Raft service.
    pub raft: SocketAddr,
    /// Address of the client API.
    pub client: SocketAddr,
    /// Address of the HTTP service.
    pub http: SocketAddr,
}

/// How others reach this master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advertise {
    /// The host that `--advertise` names (a name or an IP address).
    pub(crate) host: Option<String>,
    /// The addresses of the listeners.
    pub(crate) bound: BoundAddresses,
}

impl Advertise {
    /// Returns the addresses that others are told. The host is that of `--advertise`, with the bound ports. Without it,
    /// the host is that of this node's entry in the list, and the entry as listed is its Raft address.
    #[must_use]
    pub(crate) fn at(&self, entry: &HostPort) -> MasterNode {
        let host = self.host.as_deref().unwrap_or(entry.host());
        let raft = match self.host {
            Some(_) => text(host, self.bound.raft.port()),
            None => entry.to_string(),
        };
        MasterNode {
            raft,
            client: text(host, self.bound.client.port()),
            http: text(host, self.bound.http.port()),
        }
    }

    /// Returns the addresses of a cluster of one: `--advertise`, or the bound address, with loopback for "any address".
    #[must_use]
    pub(crate) fn alone(&self) -> MasterNode {
        let ip = match self.bound.raft.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        self.at(&HostPort::from(SocketAddr::new(ip, self.bound.raft.port())))
    }

    /// Returns the entry of `list` with the host of `--advertise` and the bound Raft port, if there is one.
    #[must_use]
    pub(crate) fn entry<'a>(&self, list: &'a [HostPort]) -> Option<&'a HostPort> {
        let host = self.host.as_deref()?;
        list.iter().find(|entry| {
            entry.port() == self.bound.raft.port()
                && HostPort::new(host, entry.port()).is_ok_and(|named| named == **entry)
        })
    }
}

fn text(host: &str, port: u16) -> String {
    match HostPort::new(host, port) {
        Ok(address) => address.to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertise(host: Option<&str>) -> Advertise {
        let at = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        Advertise {
            host: host.map(str::to_owned),
            bound: BoundAddresses { raft: at(1), client: at(2), http: at(3) },
        }
    }

    #[test]
    fn the_entry_names_the_host_unless_advertise_does() {
        let entry = HostPort::parse("a:9", 0).unwrap();
        let node = advertise(None).at(&entry);
        assert_eq!((node.raft.as_str(), node.client.as_str(), node.http.as_str()), ("a:9", "a:2", "a:3"));
        let node = advertise(Some("fd00::1")).at(&entry);
        assert_eq!((node.raft.as_str(), node.client.as_str()), ("[fd00::1]:1", "[fd00::1]:2"));
        assert_eq!(advertise(None).alone().client, "127.0.0.1:2");
    }

    #[test]
    fn advertise_finds_its_entry_by_host_and_port() {
        let list = [HostPort::parse("a:9", 0).unwrap(), HostPort::parse("a:1", 0).unwrap()];
        assert_eq!(advertise(Some("A")).entry(&list), Some(&list[1]));
        assert_eq!(advertise(Some("b")).entry(&list), None);
        assert_eq!(advertise(None).entry(&list), None);
    }
}
