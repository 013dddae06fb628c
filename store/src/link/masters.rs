use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use tonic::transport::Channel;

/// A watch and a hello now and then have time to notice that a connection is dead.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Channels to masters, one per address, made at the first use.
///
/// A channel reconnects by itself and resolves its name again each time.
#[derive(Debug)]
pub(crate) struct Masters {
    network: Arc<dyn Network>,
    channels: BTreeMap<String, Channel>,
}

impl Masters {
    pub(crate) fn new(network: Arc<dyn Network>) -> Self {
        Self { network, channels: BTreeMap::new() }
    }

    /// A client for the master at `address`, over the channel that every call to it shares.
    pub(crate) fn client(&mut self, address: &str) -> Result<MasterClient<Channel>, tonic::transport::Error> {
        if let Some(channel) = self.channels.get(address) {
            return Ok(MasterClient::new(channel.clone()));
        }
        let channel = self
            .network
            .channel(address, ChannelOptions { keep_alive: KEEP_ALIVE, ..ChannelOptions::default() })?;
        self.channels.insert(address.to_owned(), channel.clone());
        Ok(MasterClient::new(channel))
    }

    /// The next call to `address` makes a connection of its own.
    pub(crate) fn forget(&mut self, address: &str) {
        self.channels.remove(address);
    }
}

/// A client over a connection of its own: a leader that is reached again after trouble is not reached over the
/// connection that was in trouble.
pub(crate) fn fresh_client(
    network: &Arc<dyn Network>,
    address: &str,
) -> Result<MasterClient<Channel>, tonic::transport::Error> {
    network.channel(address, ChannelOptions::default()).map(MasterClient::new)
}
