use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use mc_types::TlsLevel;
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tower::service_fn;

use crate::connection::Connection;
use crate::dials::{Dial, Dials};
use crate::network::{ChannelOptions, Listener, Network, TcpNetwork, endpoint, listen};
use crate::tcp;
use crate::tls::{Accepted, Server, Tls, speaks_no_tls};

/// Sockets of this machine, with TLS as far as the process insists on it.
#[derive(Clone, Debug)]
pub struct TlsNetwork {
    tls: Arc<Tls>,
    dials: Arc<Dials>,
}

impl TlsNetwork {
    /// Returns the network of a process with these certificates, or [`TcpNetwork`] for one without.
    pub fn shared(tls: Option<Arc<Tls>>) -> Arc<dyn Network> {
        match tls {
            Some(tls) => Arc::new(Self { tls, dials: Arc::default() }),
            None => TcpNetwork::shared(),
        }
    }
}

impl Network for TlsNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        Box::pin(async move {
            if self.tls.id().is_none() {
                let why =
                    format!("{} has no tls.crt and tls.key, which a server needs", self.tls.dir().display());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            let tls = self.tls.clone();
            listen(address, move |remote, stream| {
                Connection::accepted(remote, Accepted::new(stream, tls.clone()))
            })
            .await
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(connect(&self.tls, &self.dials, address))
    }

    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error> {
        let (tls, dials) = (self.tls.clone(), self.dials.clone());
        let connector = service_fn(move |uri: Uri| {
            let (tls, dials) = (tls.clone(), dials.clone());
            async move {
                let address = uri.authority().map_or("", |authority| authority.as_str());
                connect(&tls, &dials, address).await.map(TokioIo::new)
            }
        });
        Ok(endpoint(address, options)?.connect_with_connector_lazy(connector))
    }

    fn tls(&self) -> Option<&Arc<Tls>> {
        Some(&self.tls)
    }
}

/// Connects to a master by TLS, plain, or plain where it speaks no TLS, as the level says.
async fn connect(tls: &Arc<Tls>, dials: &Dials, address: &str) -> io::Result<Connection> {
    let dial = async || {
        let stream = tcp::connect(address).await?;
        // Without the option the connection is slower, not broken.
        let _ = stream.set_nodelay(true);
        io::Result::Ok(stream)
    };
    let plain = async |stream: TcpStream| Ok(Connection::new(stream));
    if tls.level() == TlsLevel::Allow {
        return plain(dial().await?).await;
    }
    let begun = match dials.take(address) {
        Some(begun) => begun,
        None => {
            let (tls, stream) = (tls.clone(), dial().await?);
            Dial::begin(async move { tls.connect(stream, Server::Master).await })
        }
    };
    match dials.finish(address, begun).await {
        Ok(secured) => Ok(Connection::new(secured)),
        // A process without certificates takes the handshake for a broken greeting.
        Err(error) if tls.level() == TlsLevel::Prefer && speaks_no_tls(&error) => {
            tracing::debug!(address, %error, "connecting in the clear: the master speaks no TLS");
            plain(dial().await?).await
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("no TLS with {address}: {error}"))),
    }
}
