use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_base::HostPort;
use mc_base::net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use tonic::transport::Channel;

/// How long a lookup of a name may take before the name itself is used.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(500);

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
    pub(crate) fn client(
        &mut self,
        address: &str,
    ) -> Result<MasterClient<Channel>, tonic::transport::Error> {
        if let Some(channel) = self.channels.get(address) {
            return Ok(MasterClient::new(channel.clone()));
        }
        let channel = self.network.channel(address, ChannelOptions::default())?;
        self.channels.insert(address.to_owned(), channel.clone());
        Ok(MasterClient::new(channel))
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

/// The masters behind a list: a name with several records is several masters, a name with one stays a name, so that
/// it follows its record.
pub(crate) async fn resolve(list: &[HostPort]) -> Vec<String> {
    let mut masters = Vec::new();
    for address in list {
        let found = match tokio::time::timeout(RESOLVE_TIMEOUT, address.resolve()).await {
            Ok(Ok(found)) => found,
            // The channel resolves again when it connects, and says why it cannot.
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        // One record per family is one machine with two addresses, not two masters.
        let v4 = found.iter().filter(|address| address.is_ipv4()).count();
        let several = v4 > 1 || found.len() - v4 > 1;
        let these: Vec<String> = match several {
            true => found.iter().map(ToString::to_string).collect(),
            false => vec![address.to_string()],
        };
        masters.extend(these.into_iter().filter(|master| !masters.contains(master)).collect::<Vec<_>>());
    }
    masters
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_base::addr::parse_list;

    #[tokio::test]
    async fn literal_addresses_and_names_with_one_record_are_kept_as_they_are() {
        let list = parse_list("127.0.0.1:1,[::1]:2,localhost,127.0.0.1:1", 3).unwrap();
        assert_eq!(resolve(&list).await, ["127.0.0.1:1", "[::1]:2", "localhost:3"]);
    }
}
