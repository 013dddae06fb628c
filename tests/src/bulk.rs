use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_client::{Client, Put, PutOptions};

const BATCH: u64 = 128;
const FILLERS: u64 = 4;

/// Returns key number `n` of many: 100 bytes, as inference engines make them.
pub fn bulk_key(n: u64) -> String {
    format!("{:-<100}", format!("model-8b/tp0/layer-group-0/{n:016x}"))
}

/// Puts an object of one byte under each of the numbered keys, with 128 keys a call from 4 callers. Returns how long
/// that took.
pub async fn fill(client: &Client, objects: Range<u64>) -> Duration {
    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(objects.start));
    let fillers = (0..FILLERS).map(|_| {
        let (client, next, end) = (client.clone(), next.clone(), objects.end);
        tokio::spawn(async move {
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= end {
                    return;
                }
                let keys: Vec<String> = (from..(from + BATCH).min(end)).map(bulk_key).collect();
                let puts: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), &b"v"[..])).collect();
                for put in client.batch_put(&puts, &PutOptions::default()).await {
                    assert_eq!(put.expect("a put"), Put::Stored);
                }
            }
        })
    });
    for filler in fillers.collect::<Vec<_>>() {
        filler.await.expect("a filler ends");
    }
    began.elapsed()
}
