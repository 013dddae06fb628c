use futures::future::BoxFuture;
use mc_proto::v1::{self, Caller, master_client::MasterClient};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// A call that the leader answers.
pub(crate) trait Rpc: Clone + Send + Sync + 'static {
    /// Type of the leader's answer.
    type Reply: std::fmt::Debug + Send + 'static;
    /// Name of the call in error texts.
    const NAME: &'static str;

    fn caller(&mut self) -> &mut Option<Caller>;

    fn send(
        client: &mut MasterClient<Channel>,
        request: Request<Self>,
    ) -> BoxFuture<'_, Result<Response<Self::Reply>, Status>>;
}

macro_rules! rpc {
    ($($request:ident -> $reply:ident by $method:ident as $name:literal;)*) => {$(
        impl Rpc for v1::$request {
            type Reply = v1::$reply;
            const NAME: &'static str = $name;

            fn caller(&mut self) -> &mut Option<Caller> {
                &mut self.caller
            }

            fn send(
                client: &mut MasterClient<Channel>,
                request: Request<Self>,
            ) -> BoxFuture<'_, Result<Response<Self::Reply>, Status>> {
                Box::pin(client.$method(request))
            }
        }
    )*};
}

rpc! {
    BatchExistRequest -> BatchExistReply by batch_exist as "exist";
    BatchGetRequest -> BatchGetReply by batch_get as "get";
    BatchDescribeRequest -> BatchDescribeReply by batch_describe as "describe";
    ReportMismatchRequest -> ReportMismatchReply by report_mismatch as "report mismatch";
    ListKeysRequest -> ListKeysReply by list_keys as "list keys";
    BatchPutStartRequest -> BatchPutStartReply by batch_put_start as "put start";
    BatchPutEndRequest -> BatchPutEndReply by batch_put_end as "put end";
    BatchPutRevokeRequest -> BatchPutRevokeReply by batch_put_revoke as "put revoke";
    BatchRemoveRequest -> BatchRemoveReply by batch_remove as "remove";
    RemoveAllRequest -> RemoveAllReply by remove_all as "remove all";
    BatchDropReplicasRequest -> BatchDropReplicasReply by batch_drop_replicas as "drop replicas";
    ListTenantsRequest -> ListTenantsReply by list_tenants as "list tenants";
    SetTenantRequest -> SetTenantReply by set_tenant as "set tenant";
    ListMembersRequest -> ListMembersReply by list_members as "list members";
    TransferLeaderRequest -> TransferLeaderReply by transfer_leader as "transfer leader";
    AddMemberRequest -> AddMemberReply by add_member as "add member";
    RemoveMemberRequest -> RemoveMemberReply by remove_member as "remove member";
    GetConfigRequest -> GetConfigReply by get_config as "get config";
    SetConfigRequest -> SetConfigReply by set_config as "set config";
    FinishUpgradeRequest -> FinishUpgradeReply by finish_upgrade as "finish upgrade";
}
