//! The task that publishes local puts once a leader is back.

use std::sync::Arc;
use std::time::Duration;

use mc_discovery::Backoff;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{CacheUse, PutBatch, PutItem};
use crate::core::Core;
use crate::local::Unpublished;
use crate::mode::ClientMode;

/// Shortest and longest pause between tries while the pool can't take local puts: no space, no store, no answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Publishes local puts until `closed`. It shares only `core` with the client, so it keeps no client alive.
pub(crate) async fn publish(core: Core, closed: CancellationToken) {
    closed.run_until_cancelled(follow(&core)).await;
}

/// Waits for local puts and for a leader, then publishes, again and again.
///
/// After every added put it checks for a leader, and `wait_for` looks at the current state before it waits. So a
/// put that went local just before a leader was found does not wait for the next leader.
async fn follow(core: &Core) {
    let Some(unpublished) = &core.local.unpublished else { return };
    let mut mode = core.leader.mode.subscribe();
    let mut pace = Backoff::new(RETRY.0, RETRY.1);
    loop {
        unpublished.some().await;
        if mode.wait_for(|mode| matches!(mode, ClientMode::Leader(_))).await.is_err() {
            return;
        }
        if publish_some(core, unpublished).await {
            pace.reset();
        } else {
            sleep(pace.wait()).await;
        }
    }
}

/// Publishes one chunk; returns whether everything that it tried is settled.
async fn publish_some(core: &Core, unpublished: &Unpublished) -> bool {
    let (cache, counters) = (&core.local.cache, &*core.counters);
    let taken = unpublished.take(cache, counters);
    let Some(options) = taken.first().map(|(put, _)| Arc::clone(&put.options)) else { return true };
    let items = PutItem::of_values(taken.iter().map(|(put, value)| (&put.key[..], &value[..])));
    let results = PutBatch::new(core, &options, CacheUse::Publish).put_all(&items).await;
    let failures: Vec<String> =
        results.iter().filter_map(|result| result.as_ref().err()).map(ToString::to_string).collect();
    if let Some(first) = failures.first() {
        tracing::debug!(count = failures.len(), "local puts were not published: {first}");
    }
    let mut settled = true;
    for ((put, _), result) in taken.into_iter().zip(&results) {
        settled &= !unpublished.ended(put, result, cache, counters);
    }
    settled
}
