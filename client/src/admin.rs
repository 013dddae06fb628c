use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use mc_proto::{
    detail_of, reason_of,
    v1::{
        AddMemberRequest, BatchGetRequest, Caller, FinishUpgradeReply, FinishUpgradeRequest, GetConfigReply,
        GetConfigRequest, GetResult, Leader, ListMembersReply, ListMembersRequest, MemberStatus,
        RemoveMemberRequest, Replica, SetConfigReply, SetConfigRequest, StatusReply, StatusRequest,
        StoreGrant, TransferLeaderRequest,
    },
};
use mc_transfer::PeerEndpoint;
use mc_types::{ByteSize, Code, NodeId, PutId, SegmentEpoch, SegmentNumber, StoreId};
use tokio::time::{Instant, timeout};

use crate::call::Repeat;
use crate::core::{item_error, nonsense};
use crate::placement::endpoint;
use crate::rpc::Rpc;
use crate::{Client, ConnectError, Error};

/// A master that takes longer to say how it is is not well.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks the masters about themselves; what `mcctl` calls.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// One master's report of itself, or why there is none.
#[derive(Clone, Debug)]
pub struct MasterReport {
    /// The address that was asked.
    pub address: String,
    /// Its answer.
    pub status: Result<StatusReply, Error>,
}

/// The reports of all masters, and which to believe: the leader of the newest term where it answers.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Every master of the list and every one that those name, in the order of their addresses.
    pub masters: Vec<MasterReport>,
    /// Place in `masters` of the one whose view of keys, members and stores counts: the leader of the newest term,
    /// else the one that has applied most. `None` when none answers.
    pub authority: Option<usize>,
    /// The leader of the newest term that any master names, and that itself says it leads.
    pub leader: Option<Leader>,
}

/// Where an object lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The put that wrote it.
    pub version: PutId,
    /// Its bytes.
    pub size: ByteSize,
    /// CRC-64/NVME that its writer recorded.
    pub checksum: u64,
    /// Its replicas on stores that are not suspect.
    pub replicas: Vec<PlacedReplica>,
}

/// Where one replica lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedReplica {
    /// The store.
    pub store: StoreId,
    /// The allocation of its memory.
    pub epoch: SegmentEpoch,
    /// Segment within the store.
    pub segment: SegmentNumber,
    /// First byte within the segment.
    pub offset: u64,
    /// Bytes.
    pub length: ByteSize,
    /// How to reach the store.
    pub endpoints: Vec<PeerEndpoint>,
}

impl Admin {
    /// Finds the masters of the list (see [`Builder::masters`](crate::Builder::masters)). Works without a leader.
    ///
    /// # Errors
    /// [`ConnectError`] as for [`Builder::connect`](crate::Builder::connect).
    pub async fn connect(masters: &str) -> Result<Self, ConnectError> {
        Ok(Client::builder().masters(masters).local_cache(ByteSize(0)).connect().await?.admin())
    }

    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Status of one master, from what it knows itself.
    ///
    /// # Errors
    /// When it does not answer within a second.
    pub async fn status_of(&self, address: &str) -> Result<StatusReply, Error> {
        let masters = &self.client.core().masters;
        let fail = |code: Code, why: String| Error::definite("status", code, address, why);
        let mut line =
            masters.channels.to(address).map_err(|error| fail(Code::InvalidParams, innermost(&error)))?;
        // Any cluster's status is worth seeing, so none is named.
        let caller = Caller { cluster_id: Bytes::new(), ..masters.caller(None) };
        let request = StatusRequest { caller: Some(caller) };
        let answer = timeout(STATUS_TIMEOUT, line.client.status(request)).await;
        let failed = match answer {
            Ok(Ok(reply)) => return Ok(reply.into_inner()),
            Ok(Err(status)) => match detail_of(&status) {
                Some(detail) => {
                    fail(Code::try_from(detail.code).unwrap_or(Code::InternalError), detail.message)
                }
                None => fail(Code::RpcFail, reason_of(&status)),
            },
            Err(_) => fail(Code::RpcTimeout, format!("no answer within {STATUS_TIMEOUT:?}")),
        };
        masters.channels.replace(address, &line);
        Err(failed)
    }

    /// Status of all masters, asked at the same time.
    pub async fn status(&self) -> ClusterStatus {
        let mut addresses = self.client.core().masters.targets();
        let mut reports: BTreeMap<String, Result<StatusReply, Error>> = BTreeMap::new();
        // Masters that only other masters know of are asked in a second round.
        for _ in 0..2 {
            let asked = addresses
                .iter()
                .filter(|address| !reports.contains_key(*address))
                .map(|address| async { (address.clone(), self.status_of(address).await) });
            let answers = futures::future::join_all(asked.collect::<Vec<_>>()).await;
            reports.extend(answers);
            let named = reports.values().flatten().flat_map(|status| &status.masters);
            addresses = named.map(|member| member.client_address.clone()).filter(|a| !a.is_empty()).collect();
        }
        ClusterStatus::of(reports)
    }

    /// The cluster's members, as the leader knows them.
    ///
    /// # Errors
    /// When no leader answers within the call timeout.
    pub async fn list_members(&self) -> Result<ListMembersReply, Error> {
        self.ask(&ListMembersRequest { caller: None }).await
    }

    /// Takes the master at a Raft address (host or host:port) into the cluster, and returns it as a member. It copies the
    /// index without a vote first; it gets its vote by itself once it has caught up, which [`Self::list_members`] shows.
    ///
    /// # Errors
    /// `InvalidParams` when no master that may be taken in answers there, in words; else as [`Self::list_members`].
    pub async fn add_member(&self, raft_address: &str) -> Result<MemberStatus, Error> {
        let request = AddMemberRequest { caller: None, raft_address: raft_address.to_owned() };
        self.ask(&request).await?.member.ok_or_else(|| nonsense("add member"))
    }

    /// Removes a member for good; false when it was none. A leader that is removed hands over first.
    ///
    /// # Errors
    /// `InvalidParams` when no majority of what remains is up, or nothing remains; else as [`Self::list_members`].
    pub async fn remove_member(&self, member: NodeId) -> Result<bool, Error> {
        let request = RemoveMemberRequest { caller: None, node_id: member.to_bytes().to_vec().into() };
        Ok(self.ask(&request).await?.removed)
    }

    /// The cluster's replicated settings and its version.
    ///
    /// # Errors
    /// As [`Self::list_members`].
    pub async fn config(&self) -> Result<GetConfigReply, Error> {
        self.ask(&GetConfigRequest { caller: None }).await
    }

    /// Changes one replicated setting for all masters, and returns it as it was and as it is.
    ///
    /// # Errors
    /// `InvalidParams` for a name or a value that cannot be, in words; else as [`Self::list_members`].
    pub async fn set_config(&self, name: &str, value: &str) -> Result<SetConfigReply, Error> {
        let request = SetConfigRequest { caller: None, name: name.to_owned(), value: value.to_owned() };
        self.ask(&request).await
    }

    /// Raises the cluster version to the highest that all members support; older builds cannot be started any more then.
    ///
    /// # Errors
    /// `InvalidParams` when a member does not answer, or while builds of some members hold the version down that others'
    /// would raise, naming them; else as [`Self::list_members`].
    pub async fn finish_upgrade(&self) -> Result<FinishUpgradeReply, Error> {
        self.ask(&FinishUpgradeRequest { caller: None }).await
    }

    /// One call to the leader, which has the same effect however often it is made.
    async fn ask<R: Rpc>(&self, request: &R) -> Result<R::Reply, Error> {
        let core = self.client.core();
        let deadline = Instant::now() + core.call_timeout;
        let answer = core.masters.call(request, deadline, Repeat::Freely).await;
        answer.map(|answer| answer.reply).map_err(|error| error.into_error(R::NAME))
    }

    /// Hands leadership to `to`, or to the most advanced voter, and returns the new leader.
    ///
    /// # Errors
    /// When no leader answers in time, or the hand-over failed.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<Leader, Error> {
        let core = self.client.core();
        let to = to.map_or_else(Bytes::new, |id| id.to_bytes().to_vec().into());
        let request = TransferLeaderRequest { caller: None, to };
        let deadline = Instant::now() + core.call_timeout;
        match core.masters.call(&request, deadline, Repeat::IfUnsent).await {
            Ok(answer) => answer.reply.leader.ok_or_else(|| nonsense("transfer leader").unknown()),
            Err(error) => Err(error.into_error("transfer leader")),
        }
    }

    /// Where the object with this key lies; `None` when there is none that can be read now.
    ///
    /// # Errors
    /// When no leader answers in time.
    pub async fn lookup(&self, key: impl AsRef<[u8]>) -> Result<Option<Lookup>, Error> {
        let mut found = self.batch_lookup(&[key]).await;
        found.pop().unwrap_or_else(|| Err(nonsense("lookup")))
    }

    /// [`lookup`](Self::lookup) for many keys; one result each, in order. Each is leased as for a get, and nothing is
    /// read.
    pub async fn batch_lookup<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Lookup>, Error>> {
        let core = self.client.core();
        let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        let deadline = Instant::now() + core.call_timeout;
        core.by_chunks("lookup", keys, |keys| self.look_up(keys, deadline)).await
    }

    async fn look_up(&self, keys: Vec<Bytes>, deadline: Instant) -> Vec<Result<Option<Lookup>, Error>> {
        let core = self.client.core();
        let request = BatchGetRequest { caller: None, tenant: core.tenant.clone(), keys };
        let reply = match core.masters.call(&request, deadline, Repeat::Freely).await {
            Ok(answer) => answer.reply,
            Err(error) => return vec![Err(error.into_error("lookup")); request.keys.len()],
        };
        if reply.results.len() != request.keys.len() {
            return vec![Err(nonsense("lookup")); request.keys.len()];
        }
        let read = |result: &GetResult| match Code::try_from(result.code) {
            Ok(Code::Ok) => Lookup::read(result, &reply.grants).map(Some).ok_or_else(|| nonsense("lookup")),
            Ok(Code::ObjectNotFound | Code::ReplicaIsNotReady) => Ok(None),
            _ => Err(item_error("lookup", result.code)),
        };
        reply.results.iter().map(read).collect()
    }
}

impl Lookup {
    pub(crate) fn read(result: &GetResult, grants: &[StoreGrant]) -> Option<Self> {
        let replica = |replica: &Replica| {
            let grant = grants.get(usize::try_from(replica.grant).ok()?)?;
            Some(PlacedReplica {
                store: StoreId::from_bytes(&replica.store_id)?,
                epoch: SegmentEpoch::from_bytes(&replica.epoch)?,
                segment: replica.segment,
                offset: replica.offset,
                length: ByteSize(replica.length),
                endpoints: grant.endpoints.iter().cloned().map(endpoint).collect(),
            })
        };
        Some(Self {
            version: PutId::from_bytes(&result.version)?,
            size: ByteSize(result.size),
            checksum: result.checksum,
            replicas: result.replicas.iter().map(replica).collect::<Option<_>>()?,
        })
    }
}

impl ClusterStatus {
    fn of(reports: BTreeMap<String, Result<StatusReply, Error>>) -> Self {
        let masters: Vec<MasterReport> =
            reports.into_iter().map(|(address, status)| MasterReport { address, status }).collect();
        let answers = || masters.iter().enumerate().filter_map(|(at, m)| Some((at, m.status.as_ref().ok()?)));
        let leading = answers()
            .filter(|(_, status)| {
                status.leader.as_ref().is_some_and(|leader| leader.node_id == status.node_id)
            })
            .max_by_key(|(_, status)| status.term);
        let authority = leading.or_else(|| answers().max_by_key(|(_, status)| (status.applied, status.term)));
        Self {
            leader: leading.and_then(|(_, status)| status.leader.clone()),
            authority: authority.map(|(at, _)| at),
            masters,
        }
    }
}

/// The innermost cause: `connection refused` says more than `transport error`.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: u8, leader: Option<(u8, u64)>, term: u64, applied: u64) -> Result<StatusReply, Error> {
        let leader = leader.map(|(node, term)| Leader {
            node_id: vec![node].into(),
            address: format!("m{node}:1"),
            term,
        });
        Ok(StatusReply { node_id: vec![node].into(), leader, term, applied, ..StatusReply::default() })
    }

    #[test]
    fn the_leader_of_the_newest_term_is_believed_if_it_says_so_itself() {
        let down = Err(Error::definite("status", Code::RpcFail, "d:1", "connection refused"));
        let status = ClusterStatus::of(BTreeMap::from([
            ("a:1".to_owned(), report(1, Some((1, 4)), 4, 99)),
            ("b:1".to_owned(), report(2, Some((2, 5)), 5, 90)),
            ("c:1".to_owned(), report(3, Some((1, 4)), 4, 80)),
            ("d:1".to_owned(), down.clone()),
        ]));
        assert_eq!(status.authority, Some(1));
        assert_eq!(status.leader.map(|leader| leader.term), Some(5));

        let leaderless = ClusterStatus::of(BTreeMap::from([
            ("a:1".to_owned(), report(1, Some((3, 4)), 4, 99)),
            ("b:1".to_owned(), report(2, None, 5, 90)),
            ("d:1".to_owned(), down.clone()),
        ]));
        assert_eq!((leaderless.authority, leaderless.leader), (Some(0), None), "the one that applied most");

        assert_eq!(ClusterStatus::of(BTreeMap::from([("d:1".to_owned(), down)])).authority, None);
    }
}
