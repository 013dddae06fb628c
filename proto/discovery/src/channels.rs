use std::collections::HashMap;
use std::sync::Arc;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use parking_lot::Mutex;
use tonic::transport::Channel;

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
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    made: u64,
    by_address: HashMap<String, Line>,
}

/// A channel to a master, numbered in the order of creation.
#[derive(Clone, Debug)]
pub struct Line {
    /// Calls the master.
    pub client: MasterClient<Channel>,
    number: u64,
}

impl Channels {
    /// Makes an empty set; each channel is made with `options` when it is first needed.
    #[must_use]
    pub fn new(network: Arc<dyn Network>, options: ChannelOptions) -> Self {
        Self { network, options, lines: Mutex::default() }
    }

    fn fresh(&self, address: &str) -> Result<MasterClient<Channel>, tonic::transport::Error> {
        let channel = self.network.channel(address, self.options)?;
        Ok(MasterClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES))
    }

    /// Returns the channel that all calls to `address` share.
    ///
    /// # Errors
    /// When `address` is not a host and a port.
    pub fn to(&self, address: &str) -> Result<Line, tonic::transport::Error> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.by_address.get(address) {
            return Ok(line.clone());
        }
        lines.made += 1;
        let line = Line { client: self.fresh(address)?, number: lines.made };
        lines.by_address.insert(address.to_owned(), line.clone());
        Ok(line)
    }

    /// Drops the channel `line`, unless another caller has replaced it already. The next call makes a new one.
    pub fn replace(&self, address: &str, line: &Line) {
        let mut lines = self.lines.lock();
        if lines.by_address.get(address).is_some_and(|current| current.number == line.number) {
            lines.by_address.remove(address);
        }
    }
}
