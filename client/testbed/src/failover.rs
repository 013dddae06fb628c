//! Ends the leader under load, and measures how long a writing client has no leader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mc_client::{Client, Put};
use mc_console::{View, connect};
use rustix::process::Signal;
use tokio::sync::watch;

use crate::children::{Cluster, died_of};
use crate::workload::{Block, Ledger};

/// First block of the probing puts; the workload's blocks stay far below.
const FIRST_PROBE: Block = 1 << 40;
/// Time limit after which a failover counts as failed.
const LIMIT: Duration = Duration::from_secs(20);

/// Signal that ends a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ending {
    /// SIGKILL: the leader dies at once.
    Kill,
    /// SIGTERM: the leader hands over first.
    Term,
}

/// Result of one failover.
#[derive(Clone, Debug)]
pub struct Failover {
    /// Time for which the client had no leader. After a hand-over: its longest time without a successful call.
    pub outage: Duration,
    /// Client address of the master that was ended.
    pub leader_before: String,
    /// Client address of the master that leads now.
    pub leader_after: String,
    /// Id of the process that was ended.
    pub killed_pid: u32,
}

/// Times of a successful call of the writing client.
#[derive(Clone, Copy, Debug)]
struct Good {
    started: Instant,
    ended: Instant,
}

/// Ends the leader and waits until `client`, which is putting at this moment, has put a new block and got an old one.
/// `probes` numbers the probing calls over all failovers of a run.
pub async fn end_leader(
    cluster: &mut Cluster,
    client: &Client,
    ledger: &Ledger,
    ending: Ending,
    probes: &AtomicU64,
) -> Result<Failover> {
    let admin = connect::admin(&cluster.addresses()).await?;
    let view = View::of(&admin.status().await);
    let leader_before = view.leader.context("there is no leader to end")?;
    let process = &mut cluster.master_at(&leader_before)?.process;
    let pid = process.pid();
    if ledger.draw_line() == 0 {
        bail!("nothing was acknowledged before the leader ended: there is no old key to read");
    }

    let dead = watch::Sender::new(None);
    let signalled = Instant::now();
    process.signal(match ending {
        Ending::Kill => Signal::KILL,
        Ending::Term => Signal::TERM,
    })?;
    let death = async {
        let status = process.wait_dead(LIMIT).await?;
        if ending == Ending::Kill && !died_of(status, Signal::KILL) {
            bail!("{} did not end by SIGKILL: {status}", process.name());
        }
        let died = Instant::now();
        dead.send_replace(Some(died));
        Ok(died)
    };
    let puts = good_calls(&dead, || probe_put(client, ledger, probes));
    let gets = good_calls(&dead, || probe_get(client, ledger, probes));
    // All on one task: probes are under way while the leader dies, and all of them end with this call.
    let Ok(outcome) = tokio::time::timeout(LIMIT, async { tokio::try_join!(death, puts, gets) }).await else {
        bail!(
            "no put and get succeeded within {LIMIT:?} after the leader {leader_before} (pid {pid}) was signalled"
        );
    };
    let (died, puts, gets) = outcome?;
    let outage = outage(ending, signalled, died, &puts).max(outage(ending, signalled, died, &gets));
    let leader_after = new_leader(&admin, &leader_before).await?;
    Ok(Failover { outage, leader_before, leader_after, killed_pid: pid })
}

/// Repeats a call until one that began after the death succeeds; returns the successful calls.
async fn good_calls<F>(dead: &watch::Sender<Option<Instant>>, call: impl Fn() -> F) -> Result<Vec<Good>>
where
    F: Future<Output = Result<bool>>,
{
    let mut good = Vec::new();
    loop {
        let died = *dead.borrow();
        let started = Instant::now();
        if call().await? {
            good.push(Good { started, ended: Instant::now() });
            if died.is_some() {
                return Ok(good);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Puts a new block. Returns `true` only when the put was acknowledged as stored.
async fn probe_put(client: &Client, ledger: &Ledger, probes: &AtomicU64) -> Result<bool> {
    let block = FIRST_PROBE + probes.fetch_add(1, Ordering::Relaxed);
    let (key, value) = ledger.keys.object(block);
    let good = matches!(client.put_with(&key, &value, &ledger.keys.put_options()).await, Ok(Put::Stored));
    if good {
        ledger.acknowledge(block);
    }
    Ok(good)
}

/// Gets a block that was acknowledged before the signal. Returns `true` only with the right bytes.
async fn probe_get(client: &Client, ledger: &Ledger, probes: &AtomicU64) -> Result<bool> {
    let at = probes.fetch_add(1, Ordering::Relaxed) as usize;
    let block = ledger.old(at.wrapping_mul(7919)).context("there is no old block")?;
    match client.get(ledger.keys.key(block)).await {
        Ok(Some(bytes)) if ledger.keys.is_right(block, &bytes) => Ok(true),
        Ok(Some(_)) => bail!("the get of an old key returned other bytes than were put: block {block}"),
        Ok(None) | Err(_) => Ok(false),
    }
}

/// Returns how long calls of one kind had no leader.
///
/// After a kill: the time from just before the signal to the end of the first successful call that began after the
/// death, so that no answer of the old leader counts. After a hand-over: the longest time between two successful calls
/// from the signal on, because the old leader may still answer while it lives.
fn outage(ending: Ending, signalled: Instant, died: Instant, good: &[Good]) -> Duration {
    match ending {
        Ending::Kill => {
            let first = good.iter().find(|call| call.started >= died);
            first.map_or(Duration::MAX, |call| call.ended - signalled)
        }
        Ending::Term => {
            let ends = good.iter().map(|call| call.ended);
            let before = std::iter::once(signalled).chain(ends.clone());
            ends.zip(before).map(|(end, before)| end - before).max().unwrap_or(Duration::MAX)
        }
    }
}

async fn new_leader(admin: &mc_client::Admin, before: &str) -> Result<String> {
    let start = Instant::now();
    loop {
        match View::of(&admin.status().await).leader {
            Some(leader) if leader != before => return Ok(leader),
            _ if start.elapsed() > LIMIT => bail!("no new leader says so within {LIMIT:?}"),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_kill_only_calls_that_began_after_the_death_count() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        // The old leader answered the first call just before its death, the new leader the second.
        let good = [Good { started: at(0), ended: at(1) }, Good { started: at(30), ended: at(250) }];
        assert_eq!(outage(Ending::Kill, zero, at(2), &good), Duration::from_millis(250));
        assert_eq!(outage(Ending::Kill, zero, at(2), &good[..1]), Duration::MAX);
    }

    #[test]
    fn after_a_hand_over_the_longest_gap_counts() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let good = [3, 6, 46, 50].map(|ms| Good { started: at(ms - 1), ended: at(ms) });
        assert_eq!(outage(Ending::Term, zero, at(48), &good), Duration::from_millis(40));
    }
}
