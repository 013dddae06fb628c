use mc_net::RoleKind::{Admin, Master, Observer, Operator, Reader, Store, Writer};
use mc_net::{OpenTo, Principal};
use mc_proto::Procedure;

/// Returns the callers that a procedure is open to. A tenant's users are held to their tenant besides
/// ([`super::resolve_tenant`]), and those who call for stores to their names and tenants ([`super::StoreCaller`]).
pub(super) const fn open_to(procedure: Procedure) -> OpenTo {
    match procedure {
        Procedure::MasterHello => OpenTo::Anyone,
        Procedure::MasterStatus => ALL,
        Procedure::MasterWatch => OpenTo::Anyone,
        Procedure::MasterWhoAmI => ALL,

        Procedure::MasterBatchExist => READERS,
        Procedure::MasterBatchGet => READERS,
        Procedure::MasterBatchDescribe => READERS,
        Procedure::MasterReportMismatch => READERS,
        Procedure::MasterListKeys => READERS,
        Procedure::MasterBatchPutStart => WRITERS,
        Procedure::MasterBatchPutEnd => WRITERS,
        Procedure::MasterBatchPutRevoke => WRITERS,
        Procedure::MasterBatchRemove => WRITERS,
        Procedure::MasterRemoveAll => WRITERS,
        Procedure::MasterBatchDropReplicas => WRITERS,

        Procedure::MasterListTenants => OBSERVERS,
        Procedure::MasterSetTenant => OPERATORS,

        Procedure::MasterMountStore => STORES,
        Procedure::MasterUnmountStore => OpenTo::Roles(&[Store, Writer, Operator, Admin]),
        Procedure::MasterHeartbeat => STORES,

        Procedure::MasterListMembers => OBSERVERS,
        Procedure::MasterTransferLeader => OPERATORS,
        Procedure::MasterAddMember => OPERATORS,
        Procedure::MasterRemoveMember => OPERATORS,
        Procedure::MasterGetConfig => OBSERVERS,
        Procedure::MasterSetConfig => OPERATORS,
        Procedure::MasterFinishUpgrade => OPERATORS,
        Procedure::MasterGetSecurity => OBSERVERS,
        Procedure::MasterReadAudit => OpenTo::Roles(&[Admin]),
        // Otherwise an anonymous caller could make itself an admin below `require`, and would still be one at `require`.
        Procedure::MasterSetSecurity => OpenTo::Proven(&[Admin]),

        Procedure::RaftMeet => OpenTo::MASTERS,
        Procedure::RaftFound => OpenTo::MASTERS,
        Procedure::RaftAppendStream => OpenTo::MASTERS,
        Procedure::RaftAppend => OpenTo::MASTERS,
        Procedure::RaftVote => OpenTo::MASTERS,
        Procedure::RaftPreVote => OpenTo::MASTERS,
        Procedure::RaftInstallSnapshot => OpenTo::MASTERS,
        Procedure::RaftTransferLeader => OpenTo::MASTERS,
    }
}

/// Lists the calls of the client and Raft ports by path, each with the roles that may make it where TLS is required.
#[must_use]
pub fn calls_reference() -> Vec<(&'static str, String)> {
    Procedure::ALL.into_iter().map(|procedure| (procedure.path(), open_to(procedure).to_string())).collect()
}

/// Lists the names of the calls to masters that a caller may make.
pub(crate) fn calls_of(principal: &Principal) -> impl Iterator<Item = &'static str> {
    let to_masters = Procedure::ALL.into_iter().filter(|procedure| open_to(*procedure) != OpenTo::MASTERS);
    to_masters
        .filter(|procedure| principal.may(open_to(*procedure), procedure.name()).is_ok())
        .map(Procedure::name)
}

/// All who have an identity.
const ALL: OpenTo = OpenTo::Roles(&[Admin, Operator, Observer, Master, Store, Writer, Reader]);
/// Callers that read objects.
const READERS: OpenTo = OpenTo::Roles(&[Reader, Writer, Admin]);
/// Callers that put and remove objects.
const WRITERS: OpenTo = OpenTo::Roles(&[Writer, Admin]);
/// Callers that lend memory: a tenant's writer lends it to its tenant alone.
const STORES: OpenTo = OpenTo::Roles(&[Store, Writer]);
/// Callers that run the pool.
const OPERATORS: OpenTo = OpenTo::Roles(&[Admin, Operator]);
/// Callers that look at the state of the pool.
const OBSERVERS: OpenTo = OpenTo::Roles(&[Admin, Operator, Observer, Master]);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_net::{Demands, Peer};
    use mc_types::TlsLevel;
    use tonic::{Code, Status};

    use super::*;

    const DEMANDS: Demands<'_> = Demands { level: TlsLevel::Require, trust: "prod" };

    /// One caller of each kind: two tenants' users differ in their requests alone, which `tenant` checks.
    fn callers() -> Vec<(&'static str, Peer)> {
        let named = |id: &str| Peer::Named(Arc::new(id.parse().unwrap()));
        vec![
            ("master", named("spiffe://prod/mc/master/m")),
            ("store", named("spiffe://prod/mc/store/kv")),
            ("admin", named("spiffe://prod/mc/admin/a")),
            ("operator", named("spiffe://prod/mc/operator/o")),
            ("observer", named("spiffe://prod/mc/observer/o")),
            ("writer", named("spiffe://prod/mc/tenant/a/rw/e")),
            ("reader", named("spiffe://prod/mc/tenant/a/ro/e")),
            ("another tenant", named("spiffe://prod/mc/tenant/b/rw/e")),
            ("anonymous", Peer::Anonymous),
            ("plain", Peer::Plain),
            ("foreign admin", named("spiffe://test/mc/admin/a")),
        ]
    }

    /// The table as docs and reviewers read it: for each procedure the kinds of callers that may call it.
    fn expected(procedure: Procedure) -> &'static [&'static str] {
        const ALL: &[&str] = &[
            "master",
            "store",
            "admin",
            "operator",
            "observer",
            "writer",
            "reader",
            "another tenant",
            "anonymous",
            "plain",
            "foreign admin",
        ];
        let writers: &[&str] = &["admin", "writer", "another tenant"];
        match procedure.path().split_once("v1.").unwrap().1 {
            "Master/Hello" | "Master/Watch" => ALL,
            "Master/Status" | "Master/WhoAmI" => &ALL[..8],
            "Master/BatchExist"
            | "Master/BatchGet"
            | "Master/BatchDescribe"
            | "Master/ReportMismatch"
            | "Master/ListKeys" => &["admin", "writer", "reader", "another tenant"],
            "Master/BatchPutStart" | "Master/BatchPutEnd" | "Master/BatchPutRevoke" => writers,
            "Master/BatchRemove" | "Master/RemoveAll" | "Master/BatchDropReplicas" => writers,
            "Master/MountStore" | "Master/Heartbeat" => &["store", "writer", "another tenant"],
            "Master/UnmountStore" => &["store", "writer", "another tenant", "operator", "admin"],
            "Master/ListMembers" | "Master/GetConfig" | "Master/ListTenants" | "Master/GetSecurity" => {
                &["master", "admin", "operator", "observer"]
            }
            "Master/SetSecurity" | "Master/ReadAudit" => &["admin"],
            raft if raft.starts_with("Raft/") => &["master"],
            _ => &["admin", "operator"],
        }
    }

    #[test]
    fn each_caller_may_call_what_the_table_says_where_tls_is_required() {
        for procedure in Procedure::ALL {
            for (caller, peer) in callers() {
                let principal = Principal::of(&peer, Some(DEMANDS));
                let answer = principal.may(open_to(procedure), procedure.name());
                let allowed = expected(procedure).contains(&caller);
                assert_eq!(answer.is_ok(), allowed, "{} by {caller}: {answer:?}", procedure.path());
                let Err(denied) = answer else { continue };
                let status = Status::from(denied);
                let stranger = ["anonymous", "plain", "foreign admin"].contains(&caller);
                let code = if stranger { Code::Unauthenticated } else { Code::PermissionDenied };
                assert_eq!(status.code(), code, "{} by {caller}", procedure.path());
                assert!(status.message().contains(procedure.name()), "{}", status.message());
            }
        }
    }

    #[test]
    fn below_require_a_caller_without_an_identity_of_ours_may_call_everything() {
        for level in [TlsLevel::Allow, TlsLevel::Prefer] {
            for (procedure, (caller, peer)) in Procedure::ALL
                .into_iter()
                .flat_map(|procedure| callers().into_iter().map(move |c| (procedure, c)))
            {
                let principal = Principal::of(&peer, Some(Demands { level, ..DEMANDS }));
                let allowed = principal.may(open_to(procedure), procedure.name()).is_ok();
                let held = !["anonymous", "plain", "foreign admin"].contains(&caller)
                    || procedure == Procedure::MasterSetSecurity;
                let expected = !held || expected(procedure).contains(&caller);
                assert_eq!(allowed, expected, "{} by {caller} at {level}", procedure.path());
            }
        }
    }
}
