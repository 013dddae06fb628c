use std::io;
use std::net::SocketAddr;

use mc_types::HostPort;

/// Addresses under which the store is reached.
#[derive(Clone, Debug)]
pub(crate) struct Advertised {
    host: Option<String>,
    data_port: u16,
    http_port: Option<u16>,
}

impl Advertised {
    /// Chooses the host: the configured `host`, else the address that the listener is bound to. If neither names one,
    /// the host is found when a leader is known, because the route to the masters is the best guess of the route to the
    /// clients.
    pub(crate) fn new(host: Option<&str>, data: SocketAddr, http_port: Option<u16>) -> Self {
        let bound = || (!data.ip().is_unspecified()).then(|| data.ip().to_string());
        Self { host: host.map(str::to_owned).or_else(bound), data_port: data.port(), http_port }
    }

    /// Returns the data and the HTTP address, as seen from the leader's side. The latter is empty for a store without
    /// HTTP.
    pub(crate) async fn towards(&self, leader: &str) -> io::Result<(String, String)> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => {
                let leader: HostPort = leader.parse().map_err(io::Error::other)?;
                mc_net::local_address_towards(&leader).await?.to_string()
            }
        };
        let with_port =
            |port| HostPort::new(&host, port).map(|address| address.to_string()).map_err(io::Error::other);
        let http = self.http_port.map(with_port).transpose()?.unwrap_or_default();
        Ok((with_port(self.data_port)?, http))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(port: u16) -> SocketAddr {
        ([0, 0, 0, 0], port).into()
    }

    #[tokio::test]
    async fn what_a_person_said_wins_over_the_listener_over_the_route() {
        let said = Advertised::new(Some("gpu-7"), any(1), Some(2)).towards("127.0.0.1:5").await.unwrap();
        assert_eq!(said, ("gpu-7:1".into(), "gpu-7:2".into()));
        let bound = Advertised::new(None, ([10, 1, 2, 3], 1).into(), None).towards("nowhere.invalid:5").await;
        assert_eq!(bound.unwrap(), ("10.1.2.3:1".into(), String::new()));
        let routed = Advertised::new(None, any(1), Some(2)).towards("127.0.0.1:5").await.unwrap();
        assert_eq!(routed.0, "127.0.0.1:1", "a master on this machine is reached over loopback");
    }
}
