//! Hellos and watches, in which a master reports itself, its cluster and the leader.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use mc_proto::v1::master_client::MasterClient;
use mc_proto::{VERSIONS, common_version, detail_of, reason_of, v1};
use mc_types::{ClientId, ClusterId, Code, NodeId, StoreId};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::Leader;

/// A master's report of itself, its cluster and the leader.
#[derive(Clone, Debug)]
pub struct ClusterReport {
    /// Its cluster; `None` while it waits for one to form.
    pub cluster: Option<ClusterId>,
    /// The master's node id; a watch does not tell it.
    pub node: Option<NodeId>,
    /// The leader, if the master knows one.
    pub leader: Option<Leader>,
    /// Client addresses of all masters of its cluster.
    pub masters: Vec<String>,
}

/// The reason why a master did not name the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The master answers, but is too busy for this question.
    Busy(String),
    /// The master answers, and refuses.
    Refused(String),
    /// The master speaks none of our protocol versions; these are its versions and its software.
    VersionSkew(String),
    /// The master does not answer.
    Silent(String),
}

impl HelloError {
    /// Returns whether the master answered, so that its connection works.
    #[must_use]
    pub fn answered(&self) -> bool {
        !matches!(self, Self::Silent(_))
    }

    fn of(status: &Status) -> Self {
        match detail_of(status) {
            None => Self::Silent(reason_of(status)),
            Some(detail) if detail.code == Code::VersionSkew as i32 => Self::VersionSkew(detail.ours),
            Some(detail) if detail.code == Code::ResourceExhausted as i32 => Self::Busy(detail.message),
            Some(detail) => Self::Refused(detail.message),
        }
    }
}

/// Asks a master for the leader; waits up to `limit` for the answer.
///
/// # Errors
/// [`HelloError`] when the master does not say.
pub async fn hello(
    client: &mut MasterClient<Channel>,
    software: &str,
    limit: Duration,
) -> Result<ClusterReport, HelloError> {
    let request = v1::HelloRequest {
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
        software: software.to_owned(),
    };
    match within(limit, client.hello(request)).await {
        Some(Ok(reply)) => read_hello(reply.into_inner()),
        Some(Err(status)) => Err(HelloError::of(&status)),
        None => Err(HelloError::Silent("no answer".to_owned())),
    }
}

/// Reads the answer to a hello.
///
/// # Errors
/// [`HelloError::VersionSkew`] when both have no protocol version in common.
pub fn read_hello(reply: v1::HelloReply) -> Result<ClusterReport, HelloError> {
    let theirs = reply.version_min..=reply.version_max;
    if common_version(VERSIONS, theirs.clone()).is_none() {
        return Err(HelloError::VersionSkew(versions(&theirs, &reply.software)));
    }
    Ok(ClusterReport {
        cluster: ClusterId::from_bytes(&reply.cluster_id),
        node: NodeId::from_bytes(&reply.node_id),
        leader: Leader::read(reply.leader.as_ref()),
        masters: named(reply.masters),
    })
}

/// Formats a range of protocol versions and the software that speaks them.
#[must_use]
pub fn versions(range: &RangeInclusive<u32>, software: &str) -> String {
    format!("{} to {} ({software})", range.start(), range.end())
}

/// Makes the caller field of a call: the cluster and the node that the call is for, where known, and the client that
/// makes it.
#[must_use]
pub fn caller(cluster: Option<ClusterId>, node: Option<NodeId>, client: Option<ClientId>) -> v1::Caller {
    let bytes = |id: Option<&[u8]>| id.map(Bytes::copy_from_slice).unwrap_or_default();
    v1::Caller {
        cluster_id: bytes(cluster.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        node_id: bytes(node.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        client_id: bytes(client.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
    }
}

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
        client: &mut MasterClient<Channel>,
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
        },
    }
}

fn named(mut masters: Vec<String>) -> Vec<String> {
    masters.retain(|address| !address.is_empty());
    masters
}

/// Runs `work` for up to `limit`; returns `None` when the time is over.
///
/// It waits in four parts, because a process that was starved of CPU wakes when the time is over. So it first reads the
/// answers that arrived meanwhile.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let over = async {
        for _ in 0..4 {
            sleep(limit / 4).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = over => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_speaks_no_common_version_is_refused_in_words() {
        let newer = VERSIONS.end() + 1;
        let reply = v1::HelloReply {
            version_min: newer,
            version_max: newer + 1,
            software: "mc-master 9.0.0".into(),
            ..v1::HelloReply::default()
        };
        let skewed = read_hello(reply.clone()).unwrap_err();
        assert_eq!(skewed, HelloError::VersionSkew(format!("{newer} to {} (mc-master 9.0.0)", newer + 1)));
        let common = v1::HelloReply { version_min: *VERSIONS.end(), ..reply };
        assert!(read_hello(common).is_ok(), "it may speak newer ones besides");
    }

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
