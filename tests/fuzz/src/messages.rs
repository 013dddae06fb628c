//! Messages over gRPC. The first byte of an input says which kind of message the rest is.

use std::fmt::Debug;
use std::sync::LazyLock;

use bytes::Bytes;
use mc_log::encode_membership;
use mc_master::DEFAULT_RAFT_PORT;
use mc_master::fuzz::{self, CLUSTER, ELECTION_MAX_MS, NODE};
use mc_proto::{RAFT_VERSIONS, VERSIONS, v1};
use mc_types::{HostPort, NodeId};
use prost::Message;
use v1::append_reply::Outcome;

use crate::log::{entries, stored_membership};

/// A kind of message.
struct Kind {
    /// One that its receiver accepts.
    valid: Vec<u8>,
    read: Box<Read>,
}

/// Whether a body is one that its receiver accepts.
type Read = dyn Fn(&[u8]) -> bool + Send + Sync;

/// The kind of `valid`; `then` is what its receiver makes of those that can be decoded.
fn kind<M>(valid: M, then: fn(&M) -> bool) -> Kind
where
    M: Message + Default + PartialEq + Debug + 'static,
{
    let read = move |body: &[u8]| {
        let Ok(message) = M::decode(body) else { return false };
        assert_eq!(
            M::decode(&message.encode_to_vec()[..]).as_ref(),
            Ok(&message),
            "what was decoded encodes to itself"
        );
        then(&message)
    };
    Kind { valid: valid.encode_to_vec(), read: Box::new(read) }
}

fn read(kinds: &[Kind], data: &[u8]) -> bool {
    let Some((which, body)) = data.split_first() else { return false };
    (kinds[usize::from(*which) % kinds.len()].read)(body)
}

fn valid(kinds: &[Kind]) -> Vec<Vec<u8>> {
    (0u8..).zip(kinds).map(|(number, kind)| [&[number][..], &kind.valid].concat()).collect()
}

/// Reads requests of clients, stores and mcctl to masters.
pub(crate) fn request(data: &[u8]) -> bool {
    read(&REQUESTS, data)
}

/// One of each.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    valid(&REQUESTS)
}

/// Reads the masters' replies to them. Replies that are codes, or are shown to people as they are, are decoded and no
/// more.
pub(crate) fn reply(data: &[u8]) -> bool {
    read(&REPLIES, data)
}

/// One of each.
pub(crate) fn replies() -> Vec<Vec<u8>> {
    valid(&REPLIES)
}

/// Reads messages between masters.
pub(crate) fn peer(data: &[u8]) -> bool {
    read(&PEERS, data)
}

/// One of each.
pub(crate) fn peers() -> Vec<Vec<u8>> {
    valid(&PEERS)
}

static REQUESTS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let (caller, tenant) = (Some(caller()), "tenant".to_owned());
    let (store_id, epoch) = (id(&[7; 8]), id(&[9; 8]));
    vec![
        kind(
            v1::HelloRequest { version_min: 1, version_max: 1, software: "mc-client 0.1.0".into() },
            fuzz::hello,
        ),
        kind(v1::StatusRequest { caller: caller.clone() }, |status| fuzz::caller(status.caller.as_ref())),
        kind(v1::WatchRequest { caller: caller.clone(), leader_only: true }, |watch| {
            fuzz::caller(watch.caller.as_ref())
        }),
        kind(
            v1::BatchExistRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                keys: keys(),
                no_lease: true,
                packed: Some(v1::PackedKeys {
                    keys: keys().concat().into(),
                    lengths: keys().iter().map(|key| key.len() as u32).collect(),
                    calls: vec![1; keys().len()],
                }),
                calls: vec![1; keys().len()],
            },
            |exist| {
                fuzz::caller(exist.caller.as_ref())
                    && exist.packed.as_ref().is_none_or(fuzz::packed_keys)
                    && fuzz::calls(&exist.calls, &exist.keys)
                    && fuzz::keys(&exist.tenant, exist.keys.iter())
            },
        ),
        kind(
            v1::BatchGetRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                keys: keys(),
                calls: vec![1; keys().len()],
                reads_doubtful: true,
            },
            |get| {
                fuzz::caller(get.caller.as_ref())
                    && fuzz::calls(&get.calls, &get.keys)
                    && fuzz::keys(&get.tenant, get.keys.iter())
            },
        ),
        kind(
            v1::BatchDescribeRequest { caller: caller.clone(), tenant: tenant.clone(), keys: keys() },
            |describe| {
                fuzz::caller(describe.caller.as_ref()) && fuzz::keys(&describe.tenant, describe.keys.iter())
            },
        ),
        kind(
            v1::ReportMismatchRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                key: id(b"key"),
                version: id(&[3; 16]),
                store_id: store_id.clone(),
            },
            fuzz::report_mismatch,
        ),
        kind(
            v1::ListKeysRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                prefix: id(b"key"),
                from: 7,
                limit: 100,
            },
            |list| fuzz::caller(list.caller.as_ref()) && fuzz::keys(&list.tenant, std::iter::empty()),
        ),
        kind(
            v1::BatchPutStartRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                items: starts(),
                preferred_names: vec!["host:50060".into()],
                near: v1::Near::EachOther.into(),
                calls: vec![1; starts().len()],
            },
            fuzz::put_start,
        ),
        kind(
            v1::BatchPutEndRequest { caller: caller.clone(), tenant: tenant.clone(), items: vec![end(); 2] },
            fuzz::put_end,
        ),
        kind(
            v1::BatchPutRevokeRequest {
                caller: caller.clone(),
                tenant: tenant.clone(),
                put_ids: vec![id(&[1; 16]), id(&[2; 16])],
            },
            fuzz::put_revoke,
        ),
        kind(
            v1::BatchRemoveRequest {
                caller: caller.clone(),
                tenant,
                items: vec![v1::RemoveItem { key: id(b"key"), version: id(&[1; 16]) }; 2],
                force: true,
            },
            |remove| {
                let keys = remove.items.iter().map(|item| &item.key);
                fuzz::caller(remove.caller.as_ref()) && fuzz::keys(&remove.tenant, keys)
            },
        ),
        kind(
            v1::RemoveAllRequest {
                caller: caller.clone(),
                tenant: "tenant".into(),
                pattern: "^model-[0-9]+/(a|b)".into(),
                force: true,
                from: 7 << 32,
            },
            fuzz::remove_all,
        ),
        kind(
            v1::BatchDropReplicasRequest {
                caller: caller.clone(),
                tenant: "tenant".into(),
                store_name: "host:50060".into(),
                keys: keys(),
            },
            |drop| fuzz::caller(drop.caller.as_ref()) && fuzz::keys(&drop.tenant, drop.keys.iter()),
        ),
        kind(v1::ListTenantsRequest { caller: caller.clone(), after: Some("a".into()), limit: 10 }, |list| {
            fuzz::caller(list.caller.as_ref())
        }),
        kind(
            v1::SetTenantRequest {
                caller: caller.clone(),
                tenant: "tenant".into(),
                quota: Some(v1::Quota { bytes: 50 << 30, objects: 1_000_000 }),
                calls_per_s: Some(300),
                rdma: Some(false),
            },
            fuzz::set_tenant,
        ),
        kind(
            v1::MountStoreRequest {
                caller: caller.clone(),
                store_id: store_id.clone(),
                name: "host:50060".into(),
                epoch: epoch.clone(),
                grant_key: id(&[3; 32]),
                endpoints: vec![endpoint(); 2],
                segment_bytes: vec![50 << 30, 64],
                http_address: "host:9300".into(),
            },
            fuzz::mount,
        ),
        kind(
            v1::UnmountStoreRequest {
                caller: caller.clone(),
                store_id: store_id.clone(),
                epoch: epoch.clone(),
            },
            |unmount| fuzz::caller(unmount.caller.as_ref()) && fuzz::store(&unmount.store_id, &unmount.epoch),
        ),
        kind(
            v1::StoreHeartbeat {
                caller: caller.clone(),
                store_id,
                epoch,
                sequence: 300,
                transports: vec![transport()],
                tls: Some(tls_report()),
            },
            |beat| fuzz::caller(beat.caller.as_ref()) && fuzz::store(&beat.store_id, &beat.epoch),
        ),
        kind(v1::ListMembersRequest { caller: caller.clone() }, |list| fuzz::caller(list.caller.as_ref())),
        kind(v1::TransferLeaderRequest { caller: caller.clone(), to: id(&NODE.to_bytes()) }, |transfer| {
            fuzz::caller(transfer.caller.as_ref()) && fuzz::node(&transfer.to)
        }),
        kind(v1::AddMemberRequest { caller: caller.clone(), raft_address: "d:50055".into() }, |add| {
            fuzz::caller(add.caller.as_ref()) && HostPort::parse(&add.raft_address, DEFAULT_RAFT_PORT).is_ok()
        }),
        kind(v1::RemoveMemberRequest { caller: caller.clone(), node_id: id(&NODE.to_bytes()) }, |remove| {
            fuzz::caller(remove.caller.as_ref()) && fuzz::node(&remove.node_id)
        }),
        kind(v1::GetConfigRequest { caller: caller.clone() }, |get| fuzz::caller(get.caller.as_ref())),
        kind(
            v1::SetConfigRequest { caller: caller.clone(), name: "read-lease".into(), value: "7s".into() },
            |set| fuzz::caller(set.caller.as_ref()) && fuzz::setting(&set.name, &set.value),
        ),
        kind(v1::FinishUpgradeRequest { caller: caller.clone(), force: true }, |finish| {
            fuzz::caller(finish.caller.as_ref())
        }),
        kind(v1::GetSecurityRequest { caller: caller.clone() }, |get| fuzz::caller(get.caller.as_ref())),
        kind(
            v1::SetSecurityRequest {
                caller: caller.clone(),
                change: Some(v1::set_security_request::Change::Principal(v1::SetPrincipal {
                    name: "tenant/a/rw/engine".into(),
                    known: Some(true),
                    forget: false,
                    token_hash: Some(id(&[7; 32])),
                    certificates: Some(v1::PrincipalCertificates { uris: vec!["spiffe://b/ns/*".into(); 2] }),
                    expires_s: Some(1_800_000_000),
                    denied: Some(true),
                    shares_memory: Some(true),
                })),
                force: true,
            },
            fuzz::set_security,
        ),
        kind(v1::WhoAmIRequest { caller }, |who| fuzz::caller(who.caller.as_ref())),
    ]
});

static REPLIES: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let ended = || vec![v1::PutEndResult { code: 0 }, v1::PutEndResult { code: -2002 }];
    let setting = || v1::Setting {
        name: "read-lease".into(),
        value: "7s".into(),
        default_value: "10s".into(),
        help: "how long".into(),
        fixed: true,
    };
    vec![
        kind(
            v1::HelloReply {
                version_min: 1,
                version_max: 1,
                software: "mc-master 0.1.0".into(),
                cluster_id: id(&CLUSTER.to_bytes()),
                node_id: id(&NODE.to_bytes()),
                leader: Some(leader()),
                masters: vec!["a:50051".into(), "b:50051".into()],
                tls_level: 3,
            },
            |hello| mc_client::fuzz::hello(hello) & mc_store::fuzz::hello(hello),
        ),
        kind(status(), |_| true),
        kind(
            v1::WatchEvent {
                leader: Some(leader()),
                cluster_id: id(&CLUSTER.to_bytes()),
                stores: vec![store(); 2],
                masters: vec!["a:50051".into(); 3],
                all_suspects: true,
                spread_ms: 2_000,
                tls_level: 3,
            },
            |event| mc_client::fuzz::watch(event) & mc_store::fuzz::watch(event),
        ),
        kind(
            v1::BatchExistReply {
                results: [(0, 4096, false), (-703, 0, false), (-704, 0, true), (-704, 0, false)]
                    .map(|(code, size, being_written)| v1::ExistResult { code, size, being_written })
                    .to_vec(),
                packed: None,
                apart: true,
                packs: true,
            },
            mc_client::fuzz::exist,
        ),
        kind(
            v1::BatchExistReply {
                results: Vec::new(),
                packed: Some(v1::PackedPresences { states: vec![1, 2, 3, 4, 5].into(), sizes: vec![300; 5] }),
                apart: true,
                packs: true,
            },
            mc_client::fuzz::exist,
        ),
        kind(
            v1::BatchDescribeReply {
                results: vec![
                    v1::DescribeResult {
                        code: 0,
                        version: id(&[1; 16]),
                        size: 4096,
                        checksum: u64::MAX,
                        hard_pinned: true,
                        soft_pin_left_ms: 1_800_000,
                        replicas: vec![
                            v1::DescribedReplica {
                                store_id: id(&[7; 8]),
                                epoch: id(&[9; 8]),
                                store_name: "host:50060".into(),
                                address: "host:50060".into(),
                                segment: 1,
                                offset: 64,
                                suspect: true,
                            };
                            2
                        ],
                        data_type: 3,
                        group: Some(v1::DescribedGroup { id: id(&[5; 16]), members: 2, lost: 1, joining: 1 }),
                    };
                    2
                ],
            },
            mc_client::fuzz::describe,
        ),
        kind(
            v1::ListKeysReply { keys: vec![v1::ListedKey { key: id(b"key"), size: 4096 }; 3], next: 9 },
            |_| true,
        ),
        kind(
            v1::BatchGetReply {
                results: vec![
                    v1::GetResult {
                        code: 0,
                        version: id(&[1; 16]),
                        size: 4096,
                        checksum: u64::MAX,
                        replicas: vec![replica(); 2],
                        doubtful: true,
                        being_written: true,
                    };
                    2
                ],
                grants: vec![grant(); 2],
                lease_ms: 10_000,
                apart: true,
            },
            mc_client::fuzz::get,
        ),
        kind(
            v1::BatchPutStartReply {
                results: vec![v1::PutStartResult { code: 0, replicas: vec![replica()] }; 2],
                grants: vec![grant(); 2],
                no_space: "all leased".into(),
                largest_segment: 50 << 30,
                apart: true,
            },
            mc_client::fuzz::put_start,
        ),
        kind(v1::BatchPutEndReply { results: ended() }, |_| true),
        kind(v1::BatchPutRevokeReply { results: ended() }, |_| true),
        kind(v1::BatchRemoveReply { results: vec![v1::RemoveResult { code: -706 }; 2] }, |_| true),
        kind(
            v1::MountStoreReply {
                cluster_time_ms: 70_000,
                heartbeat_ms: 200,
                cluster_id: id(&CLUSTER.to_bytes()),
                order: 3 << 32,
            },
            |mount| mc_store::fuzz::cluster_time(&mount.cluster_id, mount.cluster_time_ms),
        ),
        kind(v1::UnmountStoreReply {}, |_| true),
        kind(
            v1::StoreHeartbeatReply {
                sequence: 300,
                cluster_time_ms: 70_000,
                term: 3,
                cluster_id: id(&CLUSTER.to_bytes()),
                mounted: true,
                dead: true,
                spread_ms: 2_000,
                tls_level: 3,
                shut_out: Some(v1::ShutOut { callers: vec![7, 1 << 63] }),
                grant_key_may_change: true,
            },
            |beat| mc_store::fuzz::cluster_time(&beat.cluster_id, beat.cluster_time_ms),
        ),
        kind(v1::ListMembersReply { members: vec![member(); 3], leader: Some(leader()) }, |_| true),
        kind(v1::TransferLeaderReply { leader: Some(leader()) }, |_| true),
        kind(v1::AddMemberReply { member: Some(member()) }, |_| true),
        kind(v1::RemoveMemberReply { removed: true }, |_| true),
        kind(v1::GetConfigReply { settings: vec![setting(); 2], cluster_version: 1 }, |_| true),
        kind(v1::SetConfigReply { before: Some(setting()), after: Some(setting()) }, |_| true),
        kind(v1::FinishUpgradeReply { before: 0, after: 1 }, |_| true),
        kind(
            v1::GetSecurityReply {
                tls_level: 3,
                principals: vec![
                    v1::Principal {
                        name: "tenant/a/rw/engine".into(),
                        has_token: true,
                        certificates: vec!["spiffe://b/ns/*".into()],
                        expires_s: 1_800_000_000,
                        denied: true,
                        shares_memory: true,
                    };
                    2
                ],
                cut_off: vec![v1::CutOff { who: "store kv".into(), why: "it has no certificate".into() }],
            },
            |_| true,
        ),
        kind(v1::SetSecurityReply {}, |_| true),
        kind(
            v1::WhoAmIReply {
                identity: "spiffe://a/mc/tenant/a/rw/engine".into(),
                tls: true,
                tenant: Some("a".into()),
                calls: vec!["BatchGet".into(); 2],
                expires_s: 1_800_000_000,
            },
            |_| true,
        ),
        kind(
            v1::ErrorDetail {
                code: -2001,
                message: "not the leader".into(),
                leader: Some(leader()),
                ours: "1".into(),
                theirs: "2".into(),
                retry_after_ms: 100,
            },
            mc_client::fuzz::refusal,
        ),
    ]
});

static PEERS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let append_reply = |outcome: Outcome, matching, vote| v1::AppendReply {
        outcome: outcome.into(),
        matching,
        vote,
        sync_us: Some(900),
        disk_nearly_full: true,
        has_descriptors: true,
        leaving: true,
    };
    let (envelope, addresses) = (Some(envelope()), Some(addresses()));
    let met = v1::MeetReply {
        instance: id(&[4; 16]),
        node_id: id(&PEER.to_bytes()),
        cluster_id: id(&CLUSTER.to_bytes()),
        formed: true,
        peers: vec!["a:50055".into(), "b:50055".into()],
        addresses: addresses.clone(),
        version_min: 1,
        version_max: 1,
        software: "0.1.0".into(),
        cluster_version_max: 1,
        tls: Some(tls_report()),
    };
    // The fields of the request are the reply's, by the same numbers.
    let meet = v1::MeetRequest::decode(&met.encode_to_vec()[..]).expect("all but one field");
    vec![
        kind(
            v1::AppendRequest {
                envelope: envelope.clone(),
                vote: vote(true),
                prev_log_id: log_id(4),
                entries: (5..)
                    .zip(entries())
                    .map(|(index, payload)| v1::Entry { log_id: log_id(index), payload: payload.into() })
                    .collect(),
                leader_commit: log_id(4),
                deserted: true,
            },
            fuzz::append,
        ),
        kind(append_reply(Outcome::Success, None, None), fuzz::append_reply),
        kind(append_reply(Outcome::Partial, log_id(6), None), fuzz::append_reply),
        kind(append_reply(Outcome::Conflict, None, None), fuzz::append_reply),
        kind(append_reply(Outcome::HigherVote, None, vote(false)), fuzz::append_reply),
        kind(
            v1::VoteRequest {
                envelope: envelope.clone(),
                vote: vote(false),
                last_log_id: log_id(4),
                leadership_transfer: true,
            },
            fuzz::vote_request,
        ),
        kind(
            v1::VoteReply {
                vote: vote(false),
                last_log_id: log_id(4),
                granted: true,
                not_a_member_since: log_id(3),
            },
            fuzz::vote_reply,
        ),
        kind(
            v1::SnapshotPiece {
                envelope: envelope.clone(),
                vote: vote(true),
                last_log_id: log_id(9),
                membership: encode_membership(&stored_membership()),
                total_bytes: 1 << 20,
                data: Bytes::new(),
            },
            fuzz::snapshot_header,
        ),
        kind(v1::SnapshotPiece { data: id(&[5; 300]), ..v1::SnapshotPiece::default() }, |_| true),
        kind(v1::SnapshotReply { vote: vote(true) }, fuzz::snapshot_reply),
        kind(
            v1::RaftTransferLeaderRequest {
                envelope,
                from_leader: vote(true),
                to: id(&NODE.to_bytes()),
                last_log_id: log_id(9),
            },
            fuzz::transfer,
        ),
        kind(v1::RaftTransferLeaderReply { accepted: true, vote: vote(true) }, fuzz::transfer_reply),
        kind(meet, |_| true),
        kind(met, fuzz::meet_reply),
        kind(
            v1::FoundRequest {
                cluster_id: id(&CLUSTER.to_bytes()),
                from: id(&PEER.to_bytes()),
                to: id(&NODE.to_bytes()),
                members: [PEER, NODE]
                    .map(|node| v1::Founder { node_id: id(&node.to_bytes()), addresses: addresses.clone() })
                    .into(),
                replaces: Bytes::new(),
            },
            fuzz::found_request,
        ),
        kind(v1::FoundReply { accepted: true, reason: "none".into() }, |_| true),
    ]
});

/// The other master.
const PEER: NodeId = NodeId(1);

fn id(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn caller() -> v1::Caller {
    v1::Caller {
        cluster_id: id(&CLUSTER.to_bytes()),
        node_id: id(&NODE.to_bytes()),
        client_id: id(&[3; 16]),
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
    }
}

fn keys() -> Vec<Bytes> {
    vec![id(b"key"), id(b"another key"), id(&[0xff; 100])]
}

fn starts() -> Vec<v1::PutStartItem> {
    let start = |key: Bytes| v1::PutStartItem {
        put_id: id(&[1; 16]),
        key,
        size: 3_274_752,
        mode: v1::PutMode::Upsert.into(),
        replicas: 2,
        deadline_ms: 30_000,
        preferred_stores: vec![7; 3],
        avoid_stores: vec![8],
        pin: v1::PinAction::PinSoft.into(),
        soft_pin_ms: 1_800_000,
        all_replicas: true,
        data_type: 3,
        group: id(b"page 7"),
    };
    keys().into_iter().map(start).collect()
}

fn end() -> v1::PutEndItem {
    v1::PutEndItem {
        put_id: id(&[1; 16]),
        key: id(b"key"),
        checksum: u64::MAX,
        failed_replicas: vec![0, 300],
        receipts: id(&[9; 32]),
    }
}

fn endpoint() -> v1::Endpoint {
    v1::Endpoint {
        transport: "tcp".into(),
        address: "host:50060".into(),
        attributes: [("gid".to_owned(), "3".to_owned())].into(),
    }
}

fn leader() -> v1::Leader {
    v1::Leader { node_id: id(&NODE.to_bytes()), address: "b:50051".into(), term: 3 }
}

fn replica() -> v1::Replica {
    v1::Replica {
        store_id: id(&[7; 8]),
        segment: 1,
        epoch: id(&[9; 8]),
        offset: 1 << 30,
        length: 4096,
        grant: 1,
        range: 300,
    }
}

fn grant() -> v1::StoreGrant {
    v1::StoreGrant {
        store_id: id(&[7; 8]),
        epoch: id(&[9; 8]),
        grant: id(&[5; 60]),
        proof_key: id(&[6; 32]),
        endpoints: vec![endpoint()],
    }
}

fn member() -> v1::MemberStatus {
    v1::MemberStatus {
        node_id: id(&NODE.to_bytes()),
        raft_address: "b:50055".into(),
        client_address: "b:50051".into(),
        http_address: "b:9003".into(),
        voter: true,
        lag_entries: Some(0),
        silent_ms: Some(40),
    }
}

fn store() -> v1::StoreStatus {
    v1::StoreStatus {
        store_id: id(&[7; 8]),
        name: "host:50060".into(),
        epoch: id(&[9; 8]),
        endpoints: vec![endpoint()],
        state: "alive".into(),
        capacity_bytes: 50 << 30,
        used_bytes: 1 << 30,
        objects: 300,
        http_address: "host:9300".into(),
        segments: vec![v1::SegmentStatus {
            capacity_bytes: 50 << 30,
            used_bytes: 1 << 30,
            objects: 300,
            number: 1,
        }],
        transports: vec![transport()],
    }
}

fn tls_report() -> v1::TlsReport {
    v1::TlsReport { has_certificate: true, level: 3, tolerated: vec!["10.0.0.7".into(); 2] }
}

fn transport() -> v1::TransportStatus {
    v1::TransportStatus {
        name: "rdma".into(),
        offered: true,
        how: "mlx5_0".into(),
        read_bytes: 300,
        written_bytes: 70_000,
    }
}

fn status() -> v1::StatusReply {
    v1::StatusReply {
        cluster_id: id(&CLUSTER.to_bytes()),
        node_id: id(&NODE.to_bytes()),
        software: "mc-master 0.1.0".into(),
        role: "leader".into(),
        term: 3,
        leader: Some(leader()),
        committed: 300,
        applied: 299,
        keys: 100,
        cluster_time_ms: 70_000,
        masters: vec![member(); 3],
        stores: vec![store(); 2],
        puts_in_flight: 1,
        cluster_version: 1,
        pid: 4000,
        waiting_for: "nothing".into(),
        cluster_version_max: 1,
        no_puts: "the disk is nearly full".into(),
        lost_entries: "node 7 does not have log entry 9".into(),
        raft_timing: "lan".into(),
        outdated: vec![outdated(); 2],
    }
}

fn outdated() -> v1::OutdatedCaller {
    v1::OutdatedCaller {
        client_id: id(&[7; 16]),
        store: "s1".into(),
        host: "10.0.0.7".into(),
        version_max: 1,
        silent_ms: 900,
    }
}

fn envelope() -> v1::Envelope {
    v1::Envelope {
        cluster_id: id(&CLUSTER.to_bytes()),
        from: id(&PEER.to_bytes()),
        to: id(&NODE.to_bytes()),
        version: *RAFT_VERSIONS.end(),
        election_max_ms: ELECTION_MAX_MS,
    }
}

fn vote(committed: bool) -> Option<v1::RaftVote> {
    Some(v1::RaftVote { term: 3, node_id: id(&PEER.to_bytes()), committed })
}

fn log_id(index: u64) -> Option<v1::LogId> {
    Some(v1::LogId { term: 3, index })
}

fn addresses() -> v1::Addresses {
    v1::Addresses { raft: "a:50055".into(), client: "a:50051".into(), http: "a:9003".into() }
}
