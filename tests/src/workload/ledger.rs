//! Keys that are written once and never put, replaced or removed again.
//!
//! The other keys of a workload are put again and again, and a value that was lost is soon replaced. These show what the pool
//! keeps: each has one value, on stores that are known.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_client::PutOptions;

use super::judged::Judged;
use crate::Seeded;
use crate::checker::Outcome;

/// Number of reads for each put.
const READS: u64 = 4;
const SIZES: std::ops::Range<u64> = 1..4 << 10;
/// Least pause between two calls: the ledger is read again at the end, whole.
const PAUSE: Duration = Duration::from_millis(15);

/// Whether the keys are read before the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ledger {
    /// They are read all the time.
    Read,
    /// They are left alone, so that only their age counts where they are evicted.
    Unread,
}

impl Ledger {
    /// Puts keys, and reads them, until `stop`.
    pub(super) async fn keep(
        self,
        client: &Judged,
        options: &PutOptions,
        mut random: Seeded,
        stop: &AtomicBool,
    ) {
        let key = |number: u64| format!("ledger-{number}");
        let mut written = 0;
        for call in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if call % (READS + 1) == 0 {
                let (key, len) = (key(written), random.within(SIZES) as usize);
                written += 1;
                if client.put(&key, len, options).await == Outcome::Stored {
                    client.find_places(&key).await;
                }
            } else if self == Self::Read {
                client.get(&key(random.below(written))).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
