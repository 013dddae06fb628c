//! Decodes what masters that form a cluster read of each other, for tests/fuzz: each function says whether it could be
//! read.

use mc_proto::v1;

use super::accept::{Standing, refusal};
use super::meet;
use crate::fuzz::NODE;

/// Checks another master's word on who it is.
pub fn meet_reply(reply: &v1::MeetReply) -> bool {
    meet::answer(reply.clone()).is_some()
}

/// A call to take part in a new cluster, which an empty master answers.
pub fn found_request(request: &v1::FoundRequest) -> bool {
    let own = Standing { node: NODE, belonging: None, bound: None, formed: false };
    meet::founding(request).is_some_and(|call| refusal(&own, &call).is_none())
}
