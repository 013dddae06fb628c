//! The machine applies a log in the batches that openraft passes to it, and locks the index for a limited number of
//! entries and bytes at a time. Where the log was cut shows neither in the index nor in the answers.

#[path = "../../../index/tests/support/mod.rs"]
mod state_support;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use mc_index::{CLUSTER_VERSION, Command, Op, Response, Settings, Stamp, State};
use mc_log::{
    Entry, LogId, MasterNode, Membership, Proposal, Raft, SnapshotMeta, StoredMembership, TypeConfig,
};
use mc_net::TcpNetwork;
use mc_types::{ClusterId, NodeId, StoreId};
use openraft::EntryPayload;
use openraft::alias::{EntryPayloadOf, SnapshotOf};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::suite::machine;
use crate::apply::index::Applied;
use crate::apply::snapshot_limits::SnapshotLimits;
use crate::apply::state_machine::{SnapshotBuilder, StateMachine};
use crate::lease::leader_contact::LeaderContact;
use crate::members::address_book::AddressBook;
use crate::network::client::peer_clients::PeerClients;
use crate::network::wire::envelope::LocalNode;
use crate::node::openraft_config::raft_config;
use crate::snapshots::SnapshotFile;
use crate::testing::mem_log::MemLog;
use crate::timing::RaftTiming;
use state_support::steps::{Script, Step, steps};
use state_support::{TERM, snapshot};

/// Only openraft can make responders. This machine applies nothing and passes them on.
struct PassOn {
    machine: StateMachine,
    to: mpsc::UnboundedSender<ApplyResponder<TypeConfig>>,
}

impl RaftStateMachine<TypeConfig> for PassOn {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        self.machine.applied_state().await
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + Send,
    {
        while let Some(entry) = entries.next().await {
            if let (_, Some(responder)) = entry? {
                self.to.send(responder).map_err(|_| io::Error::other("nobody takes responders"))?;
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.machine.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        self.machine.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>, io::Error> {
        self.machine.get_current_snapshot().await
    }
}

/// Returns that many responders, and the answers that they will have been given, in their order.
async fn responders(count: usize) -> (Vec<ApplyResponder<TypeConfig>>, impl Future<Output = Vec<Response>>) {
    let dir = tempfile::tempdir().unwrap();
    let (to, mut passed_on) = mpsc::unbounded_channel();
    let machine = PassOn { machine: machine(&dir).0, to };
    let me = NodeId(1);
    let local_node = LocalNode { cluster: ClusterId(1), node: me, election_max_ms: 300 };
    let peers = PeerClients::new(
        local_node,
        TcpNetwork::shared(),
        AddressBook::default(),
        Arc::default(),
        Arc::default(),
        LeaderContact::default(),
    );
    let config = raft_config(RaftTiming::LAN, &SnapshotLimits::default()).unwrap();
    let raft = Raft::new(me, Arc::new(config), peers, MemLog::default(), machine).await.unwrap();
    raft.initialize(BTreeMap::from([(me, MasterNode::default())])).await.unwrap();
    raft.trigger().elect(false).await.unwrap();
    let patience = Some(Duration::from_secs(10));
    raft.wait(patience).applied_index_at_least(Some(1), "its first entry as the leader").await.unwrap();

    let nothing = std::iter::repeat_n(Proposal(Bytes::new()), count);
    let told = raft.client_write_many(nothing).await.unwrap();
    let mut responders = Vec::new();
    while responders.len() < count {
        responders.push(passed_on.recv().await.unwrap());
    }
    (responders, told.map(|written| written.unwrap().unwrap().response).collect::<Vec<_>>())
}

fn entry(index: u64, payload: EntryPayloadOf<TypeConfig>) -> Entry {
    Entry { log_id: LogId::new_term_index(TERM, index), payload }
}

/// Returns a log of these steps, with the answers and the index of a replica that applies it entry by entry. Some
/// entries are so large that a few of them reach the limit of a lock.
fn one_by_one(steps: &[Step]) -> (Vec<Entry>, Vec<Response>, State) {
    let members = Membership::new_with_defaults(vec![BTreeSet::from([NodeId(1)])], []);
    let mut log = vec![entry(0, EntryPayload::Membership(members)), entry(1, EntryPayload::Blank)];
    let mut answers = vec![Response::Done, Response::Done];
    let mut state = State::new(Settings::default());
    let mut script = Script::new();
    for step in steps {
        let command = script.command(step, |key| state.get("t", key).map(|object| object.version));
        if matches!(command.op, Op::SetClusterVersion(version) if version > CLUSTER_VERSION) {
            // No build supports it: it would stop the machine.
            continue;
        }
        let stamp = Stamp { suspects: vec![StoreId(0); 20 << 10], ..command.stamp.clone() };
        let large = step.seed.is_multiple_of(4).then_some(Command { stamp, op: Op::Tick });
        for command in large.into_iter().chain([command]) {
            let index = log.len() as u64;
            answers.push(state.apply(index, TERM, &command));
            log.push(entry(index, EntryPayload::Normal(Proposal(command.encode()))));
        }
    }
    (log, answers, state)
}

/// Passes the log to a new machine in batches of these sizes, in turn, and returns its answers and its index.
async fn in_batches(log: &[Entry], sizes: &[usize]) -> (Vec<Response>, Applied) {
    let dir = tempfile::tempdir().unwrap();
    let (mut machine, index) = machine(&dir);
    let (responders, told) = responders(log.len()).await;
    let mut entries = log.iter().cloned().zip(responders.into_iter().map(Some)).map(Ok);
    for size in sizes.iter().cycle() {
        let batch: Vec<io::Result<EntryResponder<TypeConfig>>> = entries.by_ref().take(*size).collect();
        if batch.is_empty() {
            break;
        }
        machine.apply(stream::iter(batch)).await.unwrap();
    }
    (told.await, index.read(Clone::clone))
}

/// Entry by entry, several at a time, and more than one lock takes.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1..4usize, 1..100usize, Just(1_000usize)], 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn replicas_of_one_log_are_equal_byte_for_byte_however_it_was_cut(
        steps in steps(1..200),
        some in sizes(),
        others in sizes(),
    ) {
        let (log, answers, state) = one_by_one(&steps);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for sizes in [some, others] {
            let (told, applied) = runtime.block_on(in_batches(&log, &sizes));
            prop_assert_eq!(&told, &answers, "in batches of {:?}", sizes);
            prop_assert_eq!(snapshot(&applied.state), snapshot(&state), "in batches of {:?}", sizes);
            prop_assert_eq!(applied.last_applied, log.last().map(|entry| entry.log_id));
            prop_assert_eq!(applied.membership.log_id(), &Some(log[0].log_id));
        }
    }
}
