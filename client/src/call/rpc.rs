use mc_proto::v1;
use prost::Message;

/// A call that the leader answers.
pub(crate) trait Rpc: Message + Sized + 'static {
    /// Type of the leader's answer.
    type Reply: Message + std::fmt::Debug + Default + 'static;
    /// Path of the method.
    const PATH: &'static str;
    /// Name of the call in error texts.
    const NAME: &'static str;
}

macro_rules! rpc {
    ($($request:ident -> $reply:ident at $path:literal as $name:literal;)*) => {
        $(impl Rpc for v1::$request {
            type Reply = v1::$reply;
            const PATH: &'static str = $path;
            const NAME: &'static str = $name;
        })*

        #[cfg(test)]
        const METHODS: &[[&str; 3]] = &[$([stringify!($request), stringify!($reply), $path],)*];
    };
}

rpc! {
    BatchExistRequest -> BatchExistReply at "/mc.v1.Master/BatchExist" as "exist";
    BatchGetRequest -> BatchGetReply at "/mc.v1.Master/BatchGet" as "get";
    BatchDescribeRequest -> BatchDescribeReply at "/mc.v1.Master/BatchDescribe" as "describe";
    ReportMismatchRequest -> ReportMismatchReply at "/mc.v1.Master/ReportMismatch" as "report mismatch";
    ListKeysRequest -> ListKeysReply at "/mc.v1.Master/ListKeys" as "list keys";
    BatchPutStartRequest -> BatchPutStartReply at "/mc.v1.Master/BatchPutStart" as "put start";
    BatchPutEndRequest -> BatchPutEndReply at "/mc.v1.Master/BatchPutEnd" as "put end";
    BatchPutRevokeRequest -> BatchPutRevokeReply at "/mc.v1.Master/BatchPutRevoke" as "put revoke";
    BatchRemoveRequest -> BatchRemoveReply at "/mc.v1.Master/BatchRemove" as "remove";
    RemoveAllRequest -> RemoveAllReply at "/mc.v1.Master/RemoveAll" as "remove all";
    BatchDropReplicasRequest -> BatchDropReplicasReply at "/mc.v1.Master/BatchDropReplicas" as "drop replicas";
    ListTenantsRequest -> ListTenantsReply at "/mc.v1.Master/ListTenants" as "list tenants";
    SetTenantRequest -> SetTenantReply at "/mc.v1.Master/SetTenant" as "set tenant";
    ListMembersRequest -> ListMembersReply at "/mc.v1.Master/ListMembers" as "list members";
    TransferLeaderRequest -> TransferLeaderReply at "/mc.v1.Master/TransferLeader" as "transfer leader";
    AddMemberRequest -> AddMemberReply at "/mc.v1.Master/AddMember" as "add member";
    RemoveMemberRequest -> RemoveMemberReply at "/mc.v1.Master/RemoveMember" as "remove member";
    GetConfigRequest -> GetConfigReply at "/mc.v1.Master/GetConfig" as "get config";
    SetConfigRequest -> SetConfigReply at "/mc.v1.Master/SetConfig" as "set config";
    FinishUpgradeRequest -> FinishUpgradeReply at "/mc.v1.Master/FinishUpgrade" as "finish upgrade";
    GetSecurityRequest -> GetSecurityReply at "/mc.v1.Master/GetSecurity" as "get security";
    ReadAuditRequest -> ReadAuditReply at "/mc.v1.Master/ReadAudit" as "read audit";
    SetSecurityRequest -> SetSecurityReply at "/mc.v1.Master/SetSecurity" as "set security";
    WhoAmIRequest -> WhoAmIReply at "/mc.v1.Master/WhoAmI" as "who am I";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_a_method_whose_request_begins_with_the_caller() {
        let service = include_str!("../../../proto/proto/mc/v1/master.proto");
        for [request, reply, path] in METHODS {
            let method = path.strip_prefix("/mc.v1.Master/").unwrap();
            let line = format!("  rpc {method}({request}) returns ({reply});\n");
            assert!(service.contains(&line), "{line}");
            let (_, message) = service.split_once(&format!("message {request} {{\n")).unwrap();
            let first = message.lines().find(|line| !line.trim_start().starts_with("//")).unwrap();
            assert_eq!(first.trim(), "Caller caller = 1;", "{request}");
        }
    }
}
