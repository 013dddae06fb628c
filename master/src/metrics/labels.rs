//! Values of labels.

use mc_index::Op;

/// Calls of the client API, as the label `rpc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    Hello,
    Status,
    Watch,
    Exist,
    Get,
    Describe,
    ReportMismatch,
    ListKeys,
    PutStart,
    PutEnd,
    PutRevoke,
    Remove,
    RemoveAll,
    DropReplicas,
    ListTenants,
    SetTenant,
    Mount,
    Unmount,
    /// One message of a store's stream.
    Heartbeat,
    Members,
    TransferLeader,
    AddMember,
    RemoveMember,
    GetConfig,
    SetConfig,
    FinishUpgrade,
    ReadAudit,
    GetSecurity,
    SetSecurity,
    WhoAmI,
}

pub(super) const RPCS: [(Rpc, &str); 30] = [
    (Rpc::Hello, "hello"),
    (Rpc::Status, "status"),
    (Rpc::Watch, "watch"),
    (Rpc::Exist, "batch_exist"),
    (Rpc::Get, "batch_get"),
    (Rpc::Describe, "batch_describe"),
    (Rpc::ReportMismatch, "report_mismatch"),
    (Rpc::ListKeys, "list_keys"),
    (Rpc::PutStart, "batch_put_start"),
    (Rpc::PutEnd, "batch_put_end"),
    (Rpc::PutRevoke, "batch_put_revoke"),
    (Rpc::Remove, "batch_remove"),
    (Rpc::RemoveAll, "remove_all"),
    (Rpc::DropReplicas, "batch_drop_replicas"),
    (Rpc::ListTenants, "list_tenants"),
    (Rpc::SetTenant, "set_tenant"),
    (Rpc::Mount, "mount_store"),
    (Rpc::Unmount, "unmount_store"),
    (Rpc::Heartbeat, "heartbeat"),
    (Rpc::Members, "list_members"),
    (Rpc::TransferLeader, "transfer_leader"),
    (Rpc::AddMember, "add_member"),
    (Rpc::RemoveMember, "remove_member"),
    (Rpc::GetConfig, "get_config"),
    (Rpc::SetConfig, "set_config"),
    (Rpc::FinishUpgrade, "finish_upgrade"),
    (Rpc::ReadAudit, "read_audit"),
    (Rpc::GetSecurity, "get_security"),
    (Rpc::SetSecurity, "set_security"),
    (Rpc::WhoAmI, "who_am_i"),
];

/// Change of a member, as the label `change`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// Taken in, without a vote yet.
    Learner,
    /// Got a vote.
    Voter,
    /// Got a vote in the place of a dead member.
    Swap,
    /// No member any more.
    Removed,
    /// Gave up its vote before it stopped.
    Left,
}

pub(super) const MEMBER_CHANGES: [(MemberChange, &str); 5] = [
    (MemberChange::Learner, "learner"),
    (MemberChange::Voter, "voter"),
    (MemberChange::Swap, "swap"),
    (MemberChange::Removed, "removed"),
    (MemberChange::Left, "left"),
];

/// Why a leader evicts, as the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictedFor {
    /// The pool was fuller than `eviction-high-watermark`.
    Watermark,
    /// Puts waited for more bytes than that.
    Put,
    /// A tenant was above the high watermark of its quota.
    Quota,
}

pub(super) const EVICTED_FOR: [(EvictedFor, &str); 3] =
    [(EvictedFor::Watermark, "watermark"), (EvictedFor::Put, "put"), (EvictedFor::Quota, "quota")];

/// How a master made sure that it leads, as the label `by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedBy {
    Lease,
    Quorum,
}

/// Kind of a proposed entry, as the label `op`: one for each kind that clients wait for, one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposed {
    PutStart,
    PutEnd,
    PutRevoke,
    Remove,
    Evict,
    Other,
}

pub(super) const PROPOSED: [(Proposed, &str); 6] = [
    (Proposed::PutStart, "put_start"),
    (Proposed::PutEnd, "put_end"),
    (Proposed::PutRevoke, "put_revoke"),
    (Proposed::Remove, "remove"),
    (Proposed::Evict, "evict"),
    (Proposed::Other, "other"),
];

impl From<&Op> for Proposed {
    fn from(op: &Op) -> Self {
        match op {
            Op::PutStart { .. } => Self::PutStart,
            Op::PutEnd { .. } | Op::PutEndProven { .. } => Self::PutEnd,
            Op::PutRevoke { .. } => Self::PutRevoke,
            Op::Remove { .. } | Op::RemoveAll { .. } | Op::DropReplicas { .. } => Self::Remove,
            Op::Evict { .. } => Self::Evict,
            Op::Tick
            | Op::NoteReuse { .. }
            | Op::MountStore(_)
            | Op::DropStore { .. }
            | Op::Sweep { .. }
            | Op::SetTenant { .. }
            | Op::SetKeyValue { .. }
            | Op::SetSecurity(_)
            | Op::SetSettings(_)
            | Op::SetClusterVersion(_) => Self::Other,
        }
    }
}
