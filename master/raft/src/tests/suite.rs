//! openraft's storage suite over the machine, and checks that the suite lacks.

use bytes::Bytes;
use futures::stream;
use mc_index::{Settings, State};
use mc_log::{Entry, LogId, Proposal, StoredMembership, TypeConfig};
use mc_types::ClusterId;
use metrics::Histogram;
use openraft::storage::RaftStateMachine;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, StorageError};
use tempfile::TempDir;

use crate::apply::audit::AuditSink;
use crate::apply::index::{Applied, SharedIndex};
use crate::apply::state_machine::StateMachine;
use crate::snapshots::SnapshotStore;
use crate::testing::command;
use crate::testing::mem_log::MemLog;

pub(super) fn machine(dir: &TempDir) -> (StateMachine, SharedIndex) {
    let (snapshots, _) = SnapshotStore::open(dir.path(), ClusterId(1)).unwrap();
    let index = SharedIndex::new(Applied {
        state: State::new(Settings::default()),
        last_applied: None,
        membership: StoredMembership::default(),
    });
    (StateMachine::new(index.clone(), snapshots, Histogram::noop(), AuditSink::new(drop)), index)
}

struct Builder;

impl StoreBuilder<TypeConfig, MemLog, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, MemLog, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let (machine, _) = machine(&dir);
        Ok((dir, MemLog::default(), machine))
    }
}

#[tokio::test]
async fn the_machine_passes_openrafts_storage_suite() {
    Suite::test_all(Builder).await.unwrap();
}

#[tokio::test]
async fn a_command_of_a_newer_build_stops_the_machine_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut machine, index) = machine(&dir);
    let entry = |index, proposal| Entry {
        log_id: LogId::new_term_index(1, index),
        payload: EntryPayload::Normal(proposal),
    };
    let newer = Proposal(Bytes::from_static(&[200, 1, 2, 3]));
    let entries = [entry(0, command(1)), entry(1, newer), entry(2, command(2))];
    let applied = machine.apply(stream::iter(entries.map(|entry| Ok((entry, None))))).await;

    let err = applied.unwrap_err().to_string();
    assert!(err.contains("must not be skipped") && err.contains("format 200 is newer"), "{err}");
    assert_eq!(index.read(|applied| applied.last_applied.map(|id| id.index)), Some(0));
}
