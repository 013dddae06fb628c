//! openraft's storage suite over the machine.

use mc_base::ClusterId;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::mem_log::MemLog;
use crate::raft::{Applied, Machine, SharedIndex, SnapshotStore, StoredMembership, TypeConfig};
use crate::state::Settings;
use crate::state::State;

struct Builder;

impl StoreBuilder<TypeConfig, MemLog, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, MemLog, Machine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, _) = SnapshotStore::open(dir.path(), ClusterId(1)).unwrap();
        let index = SharedIndex::new(Applied {
            state: State::new(Settings::default()),
            last_applied: None,
            membership: StoredMembership::default(),
        });
        Ok((dir, MemLog::default(), Machine::new(index, snapshots)))
    }
}

#[tokio::test]
async fn the_machine_passes_openrafts_storage_suite() {
    Suite::test_all(Builder).await.unwrap();
}
