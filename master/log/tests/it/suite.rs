//! openraft's own storage suite, on both disks. The suite wants a state machine too: a minimal one that keeps what
//! openraft asks back.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use mc_index::Response;
use mc_log::{
    LogId, LogOptions, LogStore, MemoryDisk, SledOptions, SnapshotMeta, StoredMembership, TypeConfig,
};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageError};
use parking_lot::Mutex;
use tempfile::TempDir;

type Snapshot = openraft::alias::SnapshotOf<TypeConfig, Bytes>;

#[derive(Clone, Default)]
struct Positions {
    state: Arc<Mutex<(Option<LogId>, StoredMembership)>>,
    snapshot: Arc<Mutex<Option<Snapshot>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for Positions {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (last_log_id, last_membership) = self.state.lock().clone();
        let meta = SnapshotMeta { last_log_id, last_membership };
        let snapshot = Snapshot { meta, snapshot: Bytes::new() };
        *self.snapshot.lock() = Some(snapshot.clone());
        Ok(snapshot)
    }
}

impl RaftStateMachine<TypeConfig> for Positions {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok(self.state.lock().clone())
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut state = self.state.lock();
            state.0 = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                state.1 = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(Response::Done);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Bytes) -> Result<(), io::Error> {
        *self.state.lock() = (meta.last_log_id, meta.last_membership.clone());
        *self.snapshot.lock() = Some(Snapshot { meta: meta.clone(), snapshot });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.snapshot.lock().clone())
    }
}

fn failed(error: &dyn std::fmt::Display) -> StorageError<TypeConfig> {
    StorageError::read(TypeConfig::err_from_string(error))
}

struct OnSled;
struct InMemory;

impl StoreBuilder<TypeConfig, LogStore, Positions, TempDir> for OnSled {
    async fn build(&self) -> Result<(TempDir, LogStore, Positions), StorageError<TypeConfig>> {
        let dir = TempDir::new().map_err(|error| failed(&error))?;
        // No memory for the tail: every read that can go to the disk does.
        let options = LogOptions { tail_bytes: 0, ..LogOptions::default() };
        let (store, _) = LogStore::open_sled(dir.path().join("log"), SledOptions::default(), options)
            .await
            .map_err(|error| failed(&error))?;
        Ok((dir, store, Positions::default()))
    }
}

impl StoreBuilder<TypeConfig, LogStore, Positions, ()> for InMemory {
    async fn build(&self) -> Result<((), LogStore, Positions), StorageError<TypeConfig>> {
        let (store, _) = LogStore::open(|| Ok(Box::new(MemoryDisk::new())), LogOptions::default())
            .await
            .map_err(|error| failed(&error))?;
        Ok(((), store, Positions::default()))
    }
}

#[tokio::test]
async fn the_log_on_sled_passes_openrafts_suite() {
    Suite::test_all(OnSled).await.unwrap();
}

#[tokio::test]
async fn the_log_in_memory_passes_openrafts_suite() {
    Suite::test_all(InMemory).await.unwrap();
}
