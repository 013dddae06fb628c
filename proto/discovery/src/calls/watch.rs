use std::time::Duration;

use mc_proto::v1;
use mc_proto::v1::master_client::MasterClient;
use mc_types::{ClusterId, StoreId, TlsLevel};
use tonic::Streaming;

use super::report::{ClusterReport, HelloError, named};
use super::token_channel::TokenChannel;
use super::within::within;
use crate::Leader;

/// One event of a watch: news from the watched master.
#[derive(Clone, Debug)]
pub struct WatchUpdate {
    /// The master's cluster, the leader, and all masters.
    pub report: ClusterReport,
    /// Time over which the watchers of this master move to another when it begins to lead.
    pub spread: Duration,
    /// Stores, each with whether it is suspect.
    pub stores: Vec<(StoreId, bool)>,
    /// Whether `stores` lists all suspects; otherwise it lists only the stores that changed.
    pub all_suspects: bool,
}

/// A stream of news from one master.
#[derive(Debug)]
pub struct Watch(Streaming<v1::WatchEvent>);

impl Watch {
    /// Opens a watch; waits up to `limit`. With `leader_only` it brings no news of stores.
    ///
    /// # Errors
    /// [`HelloError`] when the master does not open it.
    pub async fn open(
        client: &mut MasterClient<TokenChannel>,
        caller: v1::Caller,
        leader_only: bool,
        limit: Duration,
    ) -> Result<Self, HelloError> {
        let request = v1::WatchRequest { caller: Some(caller), leader_only };
        match within(limit, client.watch(request)).await {
            Some(Ok(stream)) => Ok(Self(stream.into_inner())),
            Some(Err(status)) => Err(HelloError::of(&status)),
            None => Err(HelloError::Silent("no answer".to_owned())),
        }
    }

    /// Waits for the next event. If the master is stopped (SIGSTOP) rather than dead, the channel's keep-alive breaks
    /// the stream.
    ///
    /// # Errors
    /// [`HelloError`] when the stream has ended.
    pub async fn next(&mut self) -> Result<WatchUpdate, HelloError> {
        match self.0.message().await {
            Ok(Some(event)) => Ok(read_update(event)),
            Ok(None) => Err(HelloError::Silent("the stream ended".to_owned())),
            Err(status) => Err(HelloError::of(&status)),
        }
    }
}

/// Longest spread that is accepted; a master might send a longer one by mistake.
pub const LONGEST_SPREAD: Duration = Duration::from_secs(5);

/// Reads one event of a watch.
#[must_use]
pub fn read_update(event: v1::WatchEvent) -> WatchUpdate {
    let store = |store: &v1::StoreStatus| {
        let suspect = match store.state.as_str() {
            "suspect" => true,
            "alive" => false,
            _ => return None,
        };
        Some((StoreId::from_bytes(&store.store_id)?, suspect))
    };
    WatchUpdate {
        spread: Duration::from_millis(event.spread_ms.into()).min(LONGEST_SPREAD),
        stores: event.stores.iter().filter_map(store).collect(),
        all_suspects: event.all_suspects,
        report: ClusterReport {
            cluster: ClusterId::from_bytes(&event.cluster_id),
            node: None,
            leader: Leader::read(event.leader.as_ref()),
            masters: named(event.masters),
            tls_level: TlsLevel::of_number(event.tls_level),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_judged_only_by_a_state_that_is_known() {
        let store = |id: u64, state: &str| v1::StoreStatus {
            store_id: StoreId(id).to_bytes().to_vec().into(),
            state: state.into(),
            ..v1::StoreStatus::default()
        };
        let stores = vec![store(1, "suspect"), store(2, "alive"), store(3, "asleep")];
        let event = read_update(v1::WatchEvent { stores, spread_ms: 90_000, ..v1::WatchEvent::default() });
        assert_eq!(event.stores, [(StoreId(1), true), (StoreId(2), false)]);
        assert_eq!(event.spread, LONGEST_SPREAD);
    }
}
