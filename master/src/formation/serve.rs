//! The answering side of formation, on the Raft port.

use mc_proto::v1;
use mc_raft::Formation;
use mc_types::{ClusterId, NodeId};
use tonic::Status;

use super::FormationService;

#[tonic::async_trait]
impl Formation for FormationService {
    async fn meet(&self, request: v1::MeetRequest) -> Result<v1::MeetReply, Status> {
        Self::meet(self, request).await
    }

    async fn found(&self, request: v1::FoundRequest) -> Result<v1::FoundReply, Status> {
        Self::found(self, request).await
    }

    fn admit(&self, cluster: ClusterId, to: NodeId) -> Result<(), Status> {
        Self::admit(self, cluster, to)
    }
}
