use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_client::{Builder, Presence};
use tokio::task::JoinSet;

use super::Workload;
use super::call::Call;
use super::deadlines::Deadlines;
use super::groups;
use super::judged::{Errors, Judged};
use super::puts::Puts;
use super::tenants::{Tenant, key_of};
use crate::checker::{Action, Outcome};
use crate::{History, Recorder, until};

/// Longest time for which the final reads wait for a leader, and are repeated after all keys have been read once.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// Pause before keys that were missed are read again.
const REREAD_AFTER: Duration = Duration::from_millis(100);
/// Keys of one call of the final reads.
const READ_AT_ONCE: usize = 32;

/// A workload under way.
#[derive(Debug)]
pub struct Running {
    pub(super) workload: Arc<Workload>,
    pub(super) stop: Arc<AtomicBool>,
    /// Callers, and those who watch quotas.
    pub(super) tasks: JoinSet<()>,
    recorder: Recorder,
    puts: Arc<Puts>,
    builder: Builder,
    errors: Errors,
}

impl Running {
    pub(super) fn new(workload: Workload, builder: Builder) -> Self {
        Self {
            workload: Arc::new(workload),
            stop: Arc::default(),
            tasks: JoinSet::new(),
            recorder: Recorder::new(),
            puts: Arc::default(),
            builder,
            errors: Errors::default(),
        }
    }

    /// Connects a client of a tenant.
    pub(super) async fn judged(&self, number: u32, tenant: &Tenant) -> Judged {
        let client = self.builder.clone().tenant(&tenant.name).connect().await.expect("settings of a client");
        Judged {
            number,
            client,
            tenant: tenant.name.clone(),
            workload: self.workload.clone(),
            recorder: self.recorder.clone(),
            puts: self.puts.clone(),
            errors: self.errors.clone(),
        }
    }

    /// Returns the time limits of the calls.
    pub fn deadlines(&self) -> Deadlines {
        self.workload.deadlines
    }

    /// Returns the recorder of the clients' calls.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Waits until `more` puts are acknowledged from now on, which shows that the pool works. Returns how long that
    /// took.
    pub async fn acknowledged(&self, more: usize) -> Duration {
        let acknowledged = || self.recorder.count(|operation| operation.outcome == Outcome::Stored);
        let before = acknowledged();
        until(format!("{more} more puts are acknowledged"), || {
            std::future::ready(acknowledged() >= before + more)
        })
        .await
    }

    /// Waits until `more` operations of any kind end from now on. Returns how long that took.
    pub async fn operations(&self, more: usize) -> Duration {
        let before = self.recorder.count(|_| true);
        until(format!("{more} more operations end"), || {
            std::future::ready(self.recorder.count(|_| true) >= before + more)
        })
        .await
    }

    /// Returns the first errors, in words.
    pub fn errors(&self) -> Vec<String> {
        self.errors.in_words()
    }

    /// Lets the last reader, a new client, look for the masters at `addresses`: they have moved since the start.
    #[must_use]
    pub fn moved_to(mut self, addresses: String) -> Self {
        self.builder = self.builder.masters(addresses);
        self
    }

    /// Ends the clients, reads every key that was touched once more with clients of its own, and returns the history.
    ///
    /// All faults must be over. A store that is suspect for a moment makes misses that say nothing about what is kept. While the
    /// masters know an object that was missed, all missed keys are read again, and only the last reads count as final. A lost
    /// object is missed by those, too. Reads that fail are repeated as well, for the sake of the judgement, and counted: the
    /// pool serves no client well whose reads fail without a fault.
    pub async fn stop(mut self) -> History {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("no call panics");
        }
        let names: BTreeSet<String> =
            self.recorder.history().operations.into_iter().map(|operation| operation.key).collect();
        let mut readers = Vec::new();
        for tenant in &self.workload.tenants {
            let reader = self.judged(u32::MAX, tenant).await;
            let found = reader.client.connected(BACK_WITHIN).await;
            assert!(found, "no leader for the final reads in {BACK_WITHIN:?}");
            let keys = names.iter().filter_map(|name| key_of(&tenant.name, name)).map(str::to_owned);
            readers.push((reader, keys.collect::<Vec<_>>()));
        }
        let mut give_up = None;
        let (mut final_failures, mut final_misses) = (0, 0);
        let settled = loop {
            let settled = self.recorder.now();
            let (mut failures, mut is_any_there) = (0, false);
            for (reader, keys) in &mut readers {
                let Unread { missed, failed } = reader.read_all(keys).await;
                is_any_there |= reader.is_any_there(&missed).await;
                failures += failed.len();
                final_misses += missed.len();
                *keys = missed.into_iter().chain(failed).collect();
            }
            final_failures += failures;
            let is_over = Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + BACK_WITHIN);
            assert!(failures == 0 || !is_over, "{failures} keys cannot be read");
            if failures == 0 && (is_over || !is_any_there) {
                final_misses -= readers.iter().map(|(_, missed)| missed.len()).sum::<usize>();
                break settled;
            }
            tokio::time::sleep(REREAD_AFTER).await;
        };
        for (tenant, (reader, _)) in self.workload.tenants.iter().zip(&readers) {
            tenant.assert_fits(&reader.client).await;
        }
        let mut history = self.recorder.history().settled_at(settled);
        (history.final_failures, history.final_misses) = (final_failures, final_misses);
        groups::assert_whole(&history);
        history
    }
}

/// Keys of which a read got no value.
#[derive(Default)]
struct Unread {
    missed: Vec<String>,
    failed: Vec<String>,
}

impl Judged {
    /// Reads all `keys` once.
    async fn read_all(&self, keys: &[String]) -> Unread {
        let mut unread = Unread::default();
        for keys in keys.chunks(READ_AT_ONCE) {
            let call = self.call(keys.iter().map(|key| (self.name(key), Action::Get)).collect());
            let got = self.client.batch_get(keys).await;
            // A value that no store returns at the end counts as lost.
            let judged = |call: &Call<'_>, got| match call.got(got) {
                Outcome::Unread => Outcome::Miss,
                outcome => outcome,
            };
            for (key, outcome) in keys.iter().zip(call.answered(got, judged)) {
                match outcome {
                    Outcome::Value(_) => {}
                    Outcome::Miss => unread.missed.push(key.clone()),
                    _ => unread.failed.push(key.clone()),
                }
            }
        }
        unread
    }

    /// Returns whether the masters know an object with one of these keys, wherever its bytes are.
    async fn is_any_there(&self, keys: &[String]) -> bool {
        let found = self.client.batch_peek(keys).await;
        found.into_iter().any(|found| found.map_or(true, Presence::is_there))
    }
}
