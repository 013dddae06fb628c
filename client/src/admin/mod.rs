mod audit;
mod security;
mod types;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use mc_discovery::{Leader, MasterChannel};
use mc_proto::{
    detail_of, reason_of,
    v1::{
        AddMemberRequest, BatchGetRequest, Caller, FinishUpgradeRequest, GetConfigRequest, GetResult,
        ListMembersRequest, ListTenantsRequest, RemoveMemberRequest, Replica, SetConfigRequest,
        SetTenantRequest, StatusRequest, StoreGrant, TransferLeaderRequest,
    },
};
use mc_transfer::PeerEndpoint;
use mc_types::{ByteSize, Code, NodeId, PutId, SegmentEpoch, SegmentNumber, StoreId, TlsLevel};
use tokio::time::{Instant, timeout};
use tonic::{Response, Status};

use crate::call::{Repeat, Rpc};
use crate::core::{item_error, nonsense};
use crate::placement::endpoint;
use crate::{Client, ConnectError, Error};

pub use audit::{AuditKind, AuditLog, AuditRecord};
pub use security::{CutOff, Principal, PrincipalChange, Security, WhoAmI};
pub use types::{
    Config, MasterStatus, Member, Members, OutdatedCaller, Quota, SegmentStatus, Setting, StoreState,
    StoreStatus, Tenant, TenantRules, TransportStatus,
};

/// Time limit for a master's answer to a status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Interface that queries and administers the masters; `mcctl` uses it.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// One master's report of itself, or the reason why there is none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MasterReport {
    /// The address that was asked.
    pub address: String,
    /// Status that the master reported, or the error of the call.
    pub status: Result<MasterStatus, Error>,
}

/// The reports of all masters, with the report to believe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// Every listed master and every master that those name, ordered by address.
    pub masters: Vec<MasterReport>,
    /// Index in `masters` of the report to believe about keys, members and stores. It is the report of the leader of
    /// the newest term, else of the master that has applied most. `None` when no master answers.
    pub authority: Option<usize>,
    /// The leader of the newest term, among the masters that report themselves as leader.
    pub leader: Option<Leader>,
    /// Whether this client has certificates of authorities, so that it calls the masters by TLS.
    pub has_tls: bool,
    /// How far processes of the cluster with certificates insist on TLS; `None` if the masters don't say, as those of older builds.
    pub tls_level: Option<TlsLevel>,
}

/// An object's description and the places of its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lookup {
    /// Id of the put that wrote it.
    pub version: PutId,
    /// Its size.
    pub size: ByteSize,
    /// CRC-64/NVME that its writer recorded.
    pub checksum: u64,
    /// Its replicas, except those on suspect stores.
    pub replicas: Vec<PlacedReplica>,
}

/// Place of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacedReplica {
    /// The store.
    pub store: StoreId,
    /// Epoch of the store's memory.
    pub epoch: SegmentEpoch,
    /// Number of the segment within the store.
    pub segment: SegmentNumber,
    /// Offset of its first byte within the segment.
    pub offset: u64,
    /// Its length.
    pub length: ByteSize,
    /// Addresses of the store's memory.
    pub endpoints: Vec<PeerEndpoint>,
}

impl Client {
    /// Returns an interface to query and administer the masters.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }
}

impl Admin {
    /// Connects to the masters of the list (see [`Builder::masters`](crate::Builder::masters)). Works without a leader.
    ///
    /// # Errors
    /// [`ConnectError`] as for [`Builder::connect`](crate::Builder::connect).
    pub async fn connect(masters: &str) -> Result<Self, ConnectError> {
        Ok(Client::builder().masters(masters).local_cache(ByteSize(0)).connect().await?.admin())
    }

    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Asks one master for its own status.
    ///
    /// # Errors
    /// When the master cannot be reached, refuses, or does not answer within a second.
    pub async fn status_of(&self, address: &str) -> Result<MasterStatus, Error> {
        // Masters of any cluster answer a caller that names none.
        let any_cluster = |caller| Some(Caller { cluster_id: Bytes::new(), ..caller });
        let answer = self.ask_one("status", address, STATUS_TIMEOUT, async |master, caller| {
            master.client.status(StatusRequest { caller: any_cluster(caller) }).await
        });
        MasterStatus::read(answer.await?).ok_or_else(|| nonsense("status"))
    }

    /// Asks the master at an address by `call`.
    async fn ask_one<R>(
        &self,
        what: &'static str,
        address: &str,
        within: Duration,
        call: impl AsyncFnOnce(&mut MasterChannel, Caller) -> Result<Response<R>, Status>,
    ) -> Result<R, Error> {
        let masters = &self.client.core().leader.masters;
        let fail = |code: Code, why: String| Error::definite(what, code, address, why);
        let mut channel =
            masters.channel(address).map_err(|error| fail(Code::InvalidParams, innermost(&error)))?;
        let caller = masters.caller(None);
        let asked = async { timeout(within, call(&mut channel, caller)).await };
        let answer = self.client.run(what, 1, asked).await;
        let failed = match answer {
            Ok(Ok(reply)) => return Ok(reply.into_inner()),
            Ok(Err(status)) => match detail_of(&status) {
                Some(detail) => {
                    fail(Code::try_from(detail.code).unwrap_or(Code::InternalError), detail.message)
                }
                None => fail(Code::RpcFail, reason_of(&status)),
            },
            Err(_) => fail(Code::RpcTimeout, format!("no answer within {within:?}")),
        };
        masters.replace_channel(address, &channel);
        Err(failed)
    }

    /// Asks all masters for their status, concurrently.
    pub async fn status(&self) -> ClusterStatus {
        let mut addresses = self.client.core().leader.masters.targets();
        let mut reports: BTreeMap<String, Result<MasterStatus, Error>> = BTreeMap::new();
        // A second round asks masters that only other masters know.
        for _ in 0..2 {
            let asked = addresses
                .iter()
                .filter(|address| !reports.contains_key(*address))
                .map(|address| async { (address.clone(), self.status_of(address).await) });
            let answers = futures::future::join_all(asked.collect::<Vec<_>>()).await;
            reports.extend(answers);
            let named = reports.values().flatten().flat_map(|status| &status.members);
            addresses = named.map(|member| member.client_address.clone()).filter(|a| !a.is_empty()).collect();
        }
        let masters = &self.client.core().leader.masters;
        ClusterStatus {
            has_tls: masters.has_tls(),
            tls_level: masters.tls_level(),
            ..ClusterStatus::of(reports)
        }
    }

    /// Returns the cluster's members, as the leader knows them.
    ///
    /// # Errors
    /// When no leader answers within the call timeout.
    pub async fn list_members(&self) -> Result<Members, Error> {
        let reply = self.ask(&ListMembersRequest { caller: None }).await?;
        Members::read(reply).ok_or_else(|| nonsense("list members"))
    }

    /// Adds the master at a Raft address (host or host:port) to the cluster, and returns it as a member.
    ///
    /// It first copies the index as a learner, and becomes a voter once it has caught up, as [`Self::list_members`]
    /// shows.
    ///
    /// # Errors
    /// `InvalidParams`, with the reason, when no master that can be added answers there; else as
    /// [`Self::list_members`].
    pub async fn add_member(&self, raft_address: &str) -> Result<Member, Error> {
        let request = AddMemberRequest { caller: None, raft_address: raft_address.to_owned() };
        let member = self.ask(&request).await?.member;
        member.and_then(Member::read).ok_or_else(|| nonsense("add member"))
    }

    /// Removes a member permanently; returns `false` when it was no member. A leader that is removed hands over first.
    ///
    /// # Errors
    /// `InvalidParams` when no majority of the remaining members is up, or none remains; else as
    /// [`Self::list_members`].
    pub async fn remove_member(&self, member: NodeId) -> Result<bool, Error> {
        let request = RemoveMemberRequest { caller: None, node_id: member.to_bytes().to_vec().into() };
        Ok(self.ask(&request).await?.removed)
    }

    /// Returns the cluster's replicated settings and its cluster version.
    ///
    /// # Errors
    /// As [`Self::list_members`].
    pub async fn config(&self) -> Result<Config, Error> {
        let reply = self.ask(&GetConfigRequest { caller: None }).await?;
        let settings = reply.settings.into_iter().map(Setting::read).collect();
        Ok(Config { settings, cluster_version: reply.cluster_version })
    }

    /// Changes one replicated setting for all masters; returns it as it was before and after.
    ///
    /// # Errors
    /// `InvalidParams`, with the reason, for an invalid name or value; else as [`Self::list_members`].
    pub async fn set_config(&self, name: &str, value: &str) -> Result<(Setting, Setting), Error> {
        let request = SetConfigRequest { caller: None, name: name.to_owned(), value: value.to_owned() };
        let reply = self.ask(&request).await?;
        let (before, after) =
            reply.before.zip(reply.after).ok_or_else(|| nonsense("set config").unknown())?;
        Ok((Setting::read(before), Setting::read(after)))
    }

    /// Raises the cluster version to the highest that all members support; returns it as it was before and after.
    ///
    /// Older builds cannot be started afterwards. Puts of clients and to stores of older builds may fail; unless `force` is
    /// set, the version stays as it is while such clients and stores are in use.
    ///
    /// # Errors
    /// `InvalidParams` when a member does not answer, when older builds of some members hold back the version that
    /// the others support (the error names them), when clients or stores of older builds were in use within the last minute,
    /// or when the leader has not led for a minute; else as [`Self::list_members`].
    pub async fn finish_upgrade(&self, force: bool) -> Result<(u32, u32), Error> {
        let reply = self.ask(&FinishUpgradeRequest { caller: None, force }).await?;
        Ok((reply.before, reply.after))
    }

    /// Lists the tenants that are registered or have something in the pool, by name.
    ///
    /// # Errors
    /// When no leader answers in time.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        let mut tenants: Vec<Tenant> = Vec::new();
        loop {
            let after = tenants.last().map(|tenant| tenant.name.clone());
            let reply = self.ask(&ListTenantsRequest { caller: None, after, limit: 0 }).await?;
            let before = tenants.len();
            tenants.extend(reply.tenants.into_iter().map(Tenant::read));
            if !reply.more || tenants.len() == before {
                return Ok(tenants);
            }
        }
    }

    /// Registers a tenant with a quota, or changes its quota. The empty name is the default tenant.
    ///
    /// A quota below what the tenant has makes the masters evict objects of the tenant.
    ///
    /// # Errors
    /// When no leader answers in time.
    pub async fn set_tenant(&self, name: &str, quota: Quota) -> Result<(), Error> {
        self.set_tenant_rules(name, quota, TenantRules::default()).await
    }

    /// Registers a tenant with a quota and rules, or changes both.
    ///
    /// # Errors
    /// As [`Self::set_tenant`].
    pub async fn set_tenant_rules(
        &self,
        name: &str,
        quota: Quota,
        TenantRules { calls_per_s, rdma }: TenantRules,
    ) -> Result<(), Error> {
        let quota = Some(mc_proto::v1::Quota { bytes: quota.bytes.0, objects: quota.objects });
        let request = SetTenantRequest { caller: None, tenant: name.to_owned(), quota, calls_per_s, rdma };
        self.ask(&request).await.map(drop)
    }

    /// Unregisters a tenant.
    ///
    /// # Errors
    /// `TenantNotRegistered`, or `TenantNotEmpty` while it has objects or puts in flight; else as [`Self::tenants`].
    pub async fn remove_tenant(&self, name: &str) -> Result<(), Error> {
        let request = SetTenantRequest { tenant: name.to_owned(), ..SetTenantRequest::default() };
        self.ask(&request).await.map(drop)
    }

    /// Makes one call to the leader that may be repeated without harm.
    async fn ask<R: Rpc>(&self, request: &R) -> Result<R::Reply, Error> {
        let core = self.client.core();
        let deadline = Instant::now() + core.call_timeout;
        let answer = self.client.run(R::NAME, 1, core.leader.call(request, deadline, Repeat::Freely)).await;
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
        let call = core.leader.call(&request, deadline, Repeat::IfUnsent);
        match self.client.run("transfer leader", 1, call).await {
            Ok(answer) => Leader::read(answer.reply.leader.as_ref())
                .ok_or_else(|| nonsense("transfer leader").unknown()),
            Err(error) => Err(error.into_error("transfer leader")),
        }
    }

    /// Returns where the object with this key lies; `None` when no object with this key can be read now.
    ///
    /// # Errors
    /// When no leader answers in time.
    pub async fn lookup(&self, key: impl AsRef<[u8]>) -> Result<Option<Lookup>, Error> {
        let mut found = self.batch_lookup(&[key]).await;
        found.pop().unwrap_or_else(|| Err(nonsense("lookup")))
    }

    /// [`lookup`](Self::lookup) for many keys; one result each, in order. Each object gets a read lease as in a get,
    /// but no bytes are read.
    pub async fn batch_lookup<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Lookup>, Error>> {
        let core = self.client.core();
        let keys: Vec<_> = keys.iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        let deadline = Instant::now() + core.call_timeout;
        let look_up = |keys| self.look_up(keys, deadline);
        self.client.run("lookup", keys.len(), core.by_chunks("lookup", keys, look_up)).await
    }

    async fn look_up(&self, keys: Vec<Bytes>, deadline: Instant) -> Vec<Result<Option<Lookup>, Error>> {
        let core = self.client.core();
        let request = BatchGetRequest {
            tenant: core.tenant.clone(),
            keys,
            reads_doubtful: true,
            ..BatchGetRequest::default()
        };
        let reply = match core.leader.call(&request, deadline, Repeat::Freely).await {
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
    /// Returns the mounted stores with their segments, as the report to believe has them; none when no master answers.
    pub fn stores(&self) -> &[StoreStatus] {
        let authority = self.authority.and_then(|at| self.masters.get(at)?.status.as_ref().ok());
        authority.map(|status| status.stores.as_slice()).unwrap_or_default()
    }

    fn of(reports: BTreeMap<String, Result<MasterStatus, Error>>) -> Self {
        let masters: Vec<MasterReport> =
            reports.into_iter().map(|(address, status)| MasterReport { address, status }).collect();
        let answers = || masters.iter().enumerate().filter_map(|(at, m)| Some((at, m.status.as_ref().ok()?)));
        let leading = answers()
            .filter(|(_, status)| status.leader.as_ref().is_some_and(|leader| leader.node == status.node))
            .max_by_key(|(_, status)| status.term);
        let authority = leading.or_else(|| answers().max_by_key(|(_, status)| (status.applied, status.term)));
        Self {
            leader: leading.and_then(|(_, status)| status.leader.clone()),
            authority: authority.map(|(at, _)| at),
            has_tls: false,
            tls_level: None,
            masters,
        }
    }
}

/// Returns the text of the innermost cause: `connection refused` says more than `transport error`.
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

    fn report(node: u64, leader: Option<(u64, u64)>, term: u64, applied: u64) -> Result<MasterStatus, Error> {
        let leader =
            leader.map(|(node, term)| Leader { node: NodeId(node), address: format!("m{node}:1"), term });
        Ok(MasterStatus { node: NodeId(node), leader, term, applied, ..MasterStatus::default() })
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
