use mc_proto::v1::ErrorDetail;
use tonic::Status;

use super::convert::leader_to_wire;
use crate::leader::Refusal;

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut detail =
            ErrorDetail { code: refusal.code() as i32, message: refusal.to_string(), ..Default::default() };
        match refusal {
            Refusal::NotLeader { leader, .. } => detail.leader = leader.map(leader_to_wire),
            Refusal::WrongCluster { ours, theirs } => {
                (detail.ours, detail.theirs) = (ours.to_string(), theirs);
            }
            Refusal::WrongNode { ours, theirs } => (detail.ours, detail.theirs) = (ours.to_string(), theirs),
            Refusal::TooManyCalls { again, .. } => {
                detail.retry_after_ms = u32::try_from(again.as_millis() + 1).unwrap_or(u32::MAX);
            }
            Refusal::VersionSkew { ours, theirs } => (detail.ours, detail.theirs) = (ours, theirs),
            _ => {}
        }
        mc_proto::status_of(&detail)
    }
}
