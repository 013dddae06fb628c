//! Removals: by keys, of a whole tenant, by a pattern, and of replicas on one store.

use mc_proto::v1;
use mc_tests::checker::{Action, Outcome};
use mc_types::Code;
use tokio::time::Instant;

use crate::caller::{Missed, caller};
use crate::client::{Client, OPERATION};
use crate::keys::{SCRATCH, SOME_SCRATCH, scratch_keys, tenant_of};
use crate::store::{self, STORES};

impl Client {
    /// Removes keys of the default tenant by one call.
    pub(crate) async fn remove(&mut self, keys: Vec<String>) {
        let deadline = Instant::now() + OPERATION;
        loop {
            let started = self.oracle.now();
            let item = |key: &String| v1::RemoveItem {
                key: bytes::Bytes::copy_from_slice(key.as_bytes()),
                version: bytes::Bytes::new(),
            };
            let request = v1::BatchRemoveRequest {
                caller: caller(),
                tenant: String::new(),
                items: keys.iter().map(item).collect(),
                force: true,
            };
            let removed = self.caller.attempt(async |mut master| master.batch_remove(request).await).await;
            let outcomes: Vec<_> = match removed {
                Ok(reply) => {
                    let outcome = |result: &v1::RemoveResult| match Code::try_from(result.code) {
                        Ok(Code::Ok) => Outcome::Removed,
                        Ok(Code::ObjectNotFound) => Outcome::NothingToRemove,
                        _ => Outcome::Failed,
                    };
                    let outcomes: Vec<_> = reply.results.iter().map(outcome).collect();
                    let removed = outcomes.iter().filter(|outcome| **outcome == Outcome::Removed).count();
                    self.oracle
                        .tally(|tally| tally.removed_together += if removed > 1 { removed } else { 0 });
                    outcomes
                }
                // Repeated, it could hit another's object.
                Err(Missed::Unknown) => vec![Outcome::Unknown; keys.len()],
                Err(_) if Instant::now() < deadline => continue,
                Err(_) => vec![Outcome::Failed; keys.len()],
            };
            for (key, outcome) in keys.iter().zip(outcomes) {
                self.record(key, Action::Remove, outcome, started);
            }
            return;
        }
    }

    /// Removes objects of a tenant: all by one entry of the log, all but those that are leased, or those that match.
    pub(crate) async fn remove_many(&mut self) {
        let (pattern, force) = match self.rng.below(3) {
            0 => ("", true),
            1 => ("", false),
            _ => (SOME_SCRATCH, true),
        };
        let request = v1::RemoveAllRequest {
            caller: caller(),
            tenant: SCRATCH.to_owned(),
            pattern: pattern.to_owned(),
            force,
            from: 0,
        };
        let started = self.oracle.now();
        let outcome = match self.caller.attempt(async |mut master| master.remove_all(request).await).await {
            Ok(reply) => {
                self.oracle.tally(|tally| tally.mass_removals += usize::from(reply.removed > 0));
                // Of those that are leased each stays. What was not reached by this call is as unsure.
                if reply.leased == 0 && reply.next == 0 { Outcome::Cleared } else { Outcome::Unknown }
            }
            Err(Missed::Unknown) => Outcome::Unknown,
            Err(Missed::Refused | Missed::NoRoom) => Outcome::Failed,
        };
        for key in scratch_keys(pattern.is_empty()) {
            self.record(&key, Action::Remove, outcome, started);
        }
    }

    /// Drops the replica of an object on one store. The object goes if it has no other replica, now or when the store that
    /// may forget has died: a removal that may take effect at any time.
    pub(crate) async fn drop_replica(&mut self, key: &str) {
        let request = v1::BatchDropReplicasRequest {
            caller: caller(),
            tenant: tenant_of(key).to_owned(),
            store_name: store::name_of(STORES - 1),
            keys: vec![bytes::Bytes::copy_from_slice(key.as_bytes())],
        };
        let started = self.oracle.now();
        let dropped = self.caller.attempt(async |mut master| master.batch_drop_replicas(request).await).await;
        let outcome = match dropped {
            Ok(reply) if reply.results[0].code != i32::from(Code::Ok) => Outcome::Failed,
            Ok(_) => {
                self.oracle.tally(|tally| tally.replicas_dropped += 1);
                Outcome::Unknown
            }
            Err(Missed::Unknown) => Outcome::Unknown,
            Err(Missed::Refused | Missed::NoRoom) => Outcome::Failed,
        };
        self.record(key, Action::Remove, outcome, started);
    }
}
