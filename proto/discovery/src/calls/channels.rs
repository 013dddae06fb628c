use std::collections::HashMap;
use std::sync::Arc;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use parking_lot::Mutex;
use tonic::client::Grpc;

use super::token_channel::TokenChannel;

/// Largest reply that is read, in bytes. 4,096 items with several replicas each stay well below it.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// One channel per master, shared by all calls of this process. There is only one, because each connection costs both
/// ends memory and keep-alive pings, and a fleet has ten thousand clients.
///
/// A channel is made when it is first needed and replaced when it stops answering. A connection whose far end vanished
/// would otherwise swallow calls until its keep-alive notices.
#[derive(Debug)]
pub struct Channels {
    network: Arc<dyn Network>,
    options: ChannelOptions,
    channels: Mutex<ByAddress>,
}

#[derive(Debug, Default)]
struct ByAddress {
    made: u64,
    by_address: HashMap<String, MasterChannel>,
}

/// A channel to a master, numbered in the order of creation.
#[derive(Clone, Debug)]
pub struct MasterChannel {
    /// gRPC client of the master.
    pub client: MasterClient<TokenChannel>,
    /// The same connection, for [`mc_proto::call`].
    pub grpc: Grpc<TokenChannel>,
    number: u64,
}

impl Channels {
    /// Makes an empty set; each channel is made with `options` when it is first needed.
    #[must_use]
    pub fn new(network: Arc<dyn Network>, options: ChannelOptions) -> Self {
        Self { network, options, channels: Mutex::default() }
    }

    fn fresh(&self, address: &str, number: u64) -> Result<MasterChannel, tonic::transport::Error> {
        let channel = self.network.channel(address, self.options)?;
        let channel = TokenChannel::new(channel, self.network.tls().cloned());
        let client = MasterClient::new(channel.clone()).max_decoding_message_size(MAX_REPLY_BYTES);
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_REPLY_BYTES);
        Ok(MasterChannel { client, grpc, number })
    }

    /// Returns the channel that all calls to `address` share.
    ///
    /// # Errors
    /// When `address` is not a host and a port.
    pub fn get(&self, address: &str) -> Result<MasterChannel, tonic::transport::Error> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.by_address.get(address) {
            return Ok(channel.clone());
        }
        channels.made += 1;
        let channel = self.fresh(address, channels.made)?;
        channels.by_address.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Drops `channel`, unless another caller has replaced it already. The next call makes a new one.
    pub fn replace(&self, address: &str, channel: &MasterChannel) {
        let mut channels = self.channels.lock();
        if channels.by_address.get(address).is_some_and(|current| current.number == channel.number) {
            channels.by_address.remove(address);
        }
    }
}
