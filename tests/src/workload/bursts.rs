use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::judged::Judged;
use crate::Seeded;

/// Threads of the runtime of a burst.
const THREADS: usize = 2;
/// One call in so many is dropped by its caller after a moment.
const ONE_DROPPED_IN: u64 = 16;
/// Longest such moment, in microseconds.
const DROPPED_WITHIN: u64 = 20_000;

impl Judged {
    /// Makes many calls with a key each at once, on a runtime of their own with threads of its own. In every second burst the
    /// runtime ends before the calls do, which drops the rest. The client goes on.
    pub(super) async fn burst(self: &Arc<Self>, random: &mut Seeded) {
        let count = random.skewed(self.workload.bursts.clone());
        let waits_for = if random.below(2) == 0 { count } else { count / 2 };
        // No key twice: nothing but an order of all calls could explain their answers.
        let keys = self.workload.keys.max(self.workload.bursts.end);
        let (first, parts) = (random.below(keys), Seeded::new(random.bits()));
        let client = Arc::clone(self);
        let burst = move || {
            let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut calls = JoinSet::new();
                for n in 0..count {
                    let (client, random) = (Arc::clone(&client), parts.part(n));
                    calls.spawn(async move { client.one_of_a_burst((first + n) % keys, random).await });
                }
                for _ in 0..waits_for {
                    calls.join_next().await.expect("a call is left").expect("no call panics");
                }
            });
        };
        tokio::task::spawn_blocking(burst).await.expect("no call panics");
    }

    async fn one_of_a_burst(&self, key: u64, mut random: Seeded) {
        let single = self.workload.mix.draw_single(&mut random);
        let dropped_after =
            (random.below(ONE_DROPPED_IN) == 0).then(|| Duration::from_micros(random.below(DROPPED_WITHIN)));
        let call = self.single(single, key, &mut random);
        match dropped_after {
            Some(moment) => drop(tokio::time::timeout(moment, call).await),
            None => call.await,
        }
    }
}
