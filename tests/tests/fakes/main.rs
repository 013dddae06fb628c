//! The fakes of masters and stores that tests of the client and of the store use, held against the real ones: each check is made of
//! both. A fake that answers otherwise than a master would makes tests pass that show nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

mod masters_and_stores;
mod masters_of_stores;

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "made for another crate, and more than is compared here"
)]
#[path = "../../../client/tests/scenarios/support/mod.rs"]
mod client_fakes;
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "made for another crate, and more than is compared here"
)]
#[path = "../../../store/server/tests/it/common/fake.rs"]
mod store_fakes;

use bytes::Bytes;
use mc_proto::v1::{self, master_client::MasterClient};
use mc_tests::by_hand;
use mc_types::Code;
use tonic::Status;
use tonic::transport::Channel;

/// A master, asked past every redirection, and a caller that knows it.
struct Asked {
    master: MasterClient<Channel>,
    caller: v1::Caller,
}

impl Asked {
    async fn at(address: &str) -> Self {
        let mut master = by_hand::master_at(address);
        let caller = by_hand::greeted(&mut master).await;
        Self { master, caller }
    }

    fn caller(&self) -> Option<v1::Caller> {
        Some(self.caller.clone())
    }

    /// Callers that mean another cluster and another node.
    fn strangers(&self) -> [(v1::Caller, Code); 2] {
        let other = Bytes::from_static(&[9; 16]);
        let elsewhere = v1::Caller { cluster_id: other, ..self.caller.clone() };
        let node = Bytes::from_static(&[9; 8]);
        [
            (elsewhere, Code::WrongCluster),
            (v1::Caller { node_id: node, ..self.caller.clone() }, Code::WrongNode),
        ]
    }
}

/// The code, and the leader that it names, of an answer that must be a refusal.
#[track_caller]
fn refusal<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, Option<v1::Leader>) {
    let detail = mc_proto::detail_of(&answer.unwrap_err()).expect("a refusal says why");
    (Code::try_from(detail.code).unwrap(), detail.leader)
}
