use std::io;
use std::net::{IpAddr, SocketAddr};

use mc_types::HostPort;

/// Under which addresses the store is reached.
#[derive(Clone, Debug)]
pub(crate) struct Advertised {
    host: Option<String>,
    data_port: u16,
    http_port: u16,
}

impl Advertised {
    /// `host` is what a person said; else a listener that is bound to one address is reached there; else it is found
    /// out when a leader is known, because the way to the masters is the best guess of the way to the clients.
    pub(crate) fn new(host: Option<&str>, data: SocketAddr, http: SocketAddr) -> Self {
        let bound = || (!data.ip().is_unspecified()).then(|| data.ip().to_string());
        Self { host: host.map(str::to_owned).or_else(bound), data_port: data.port(), http_port: http.port() }
    }

    /// The data and the HTTP address, as seen from the leader's side.
    pub(crate) async fn towards(&self, leader: &str) -> io::Result<(String, String)> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => local_address(leader).await?.to_string(),
        };
        let with_port =
            |port| HostPort::new(&host, port).map(|address| address.to_string()).map_err(io::Error::other);
        Ok((with_port(self.data_port)?, with_port(self.http_port)?))
    }
}

/// The local address that routes to `leader`. Nothing is sent: connecting a datagram socket only picks the route.
async fn local_address(leader: &str) -> io::Result<IpAddr> {
    let leader: HostPort = leader.parse().map_err(io::Error::other)?;
    let mut last = io::Error::other("no address");
    for address in mc_net::resolve(&leader).await? {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let routed = async {
            let socket = tokio::net::UdpSocket::bind(any).await?;
            socket.connect(address).await?;
            socket.local_addr()
        };
        match routed.await {
            Ok(local) => return Ok(local.ip()),
            Err(err) => last = err,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(port: u16) -> SocketAddr {
        ([0, 0, 0, 0], port).into()
    }

    #[tokio::test]
    async fn what_a_person_said_wins_over_the_listener_over_the_route() {
        let said = Advertised::new(Some("gpu-7"), any(1), any(2)).towards("127.0.0.1:5").await.unwrap();
        assert_eq!(said, ("gpu-7:1".into(), "gpu-7:2".into()));
        let bound =
            Advertised::new(None, ([10, 1, 2, 3], 1).into(), any(2)).towards("nowhere.invalid:5").await;
        assert_eq!(bound.unwrap().0, "10.1.2.3:1");
        let routed = Advertised::new(None, any(1), any(2)).towards("127.0.0.1:5").await.unwrap();
        assert_eq!(routed.0, "127.0.0.1:1", "a master on this machine is reached over loopback");
    }
}
