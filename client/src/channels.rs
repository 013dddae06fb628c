use std::collections::HashMap;
use std::sync::Arc;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use parking_lot::Mutex;
use tonic::transport::Channel;

/// Largest answer that is read: 4,096 items with several replicas each stay well below it.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// One channel per master for all that this client asks it, made when it is first needed and replaced when it stopped
/// answering: a connection whose far end is gone without a word would swallow calls until its keep-alive notices. One,
/// because each connection costs both ends memory and keep-alive, and a fleet has ten thousand clients.
#[derive(Debug)]
pub(crate) struct Channels {
    network: Arc<dyn Network>,
    options: ChannelOptions,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    made: u64,
    by_address: HashMap<String, Line>,
}

/// A channel, and which one it is among those made.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) client: MasterClient<Channel>,
    number: u64,
}

impl Channels {
    pub(crate) fn new(network: Arc<dyn Network>, options: ChannelOptions) -> Self {
        Self { network, options, lines: Mutex::default() }
    }

    fn fresh(&self, address: &str) -> Result<MasterClient<Channel>, tonic::transport::Error> {
        let channel = self.network.channel(address, self.options)?;
        Ok(MasterClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES))
    }

    /// The channel that all calls to this address share.
    pub(crate) fn to(&self, address: &str) -> Result<Line, tonic::transport::Error> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.by_address.get(address) {
            return Ok(line.clone());
        }
        lines.made += 1;
        let line = Line { client: self.fresh(address)?, number: lines.made };
        lines.by_address.insert(address.to_owned(), line.clone());
        Ok(line)
    }

    /// The next call makes a new channel, unless somebody else has replaced this one already.
    pub(crate) fn replace(&self, address: &str, line: &Line) {
        let mut lines = self.lines.lock();
        if lines.by_address.get(address).is_some_and(|current| current.number == line.number) {
            lines.by_address.remove(address);
        }
    }
}
