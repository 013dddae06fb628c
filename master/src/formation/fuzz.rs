//! Entry points of tests/fuzz to what masters that form a cluster read of each other: each function says whether it
//! could be read.

use mc_proto::v1;

use super::accept::{InviteeState, refusal};
use super::meet;
use crate::fuzz::NODE;

/// Whether another master's introduction can be read.
pub fn meet_reply(reply: &v1::MeetReply) -> bool {
    meet::answer(reply.clone()).is_some()
}

/// Whether an empty master accepts this call to take part in a new cluster.
pub fn found_request(request: &v1::FoundRequest) -> bool {
    let own = InviteeState { node: NODE, belonging: None, bound: None, formed: false };
    meet::founding(request).is_some_and(|call| refusal(&own, &call).is_none())
}
