//! `mc-bench replay`: a recorded workload through a full pool.

mod index;
mod pool;

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use mc_console::{Ended, Global, Output, Progress, ratio, rounded};
use mc_testbed::{Capacity, Request, baseline, read_trace};
use mc_types::ByteSize;
use serde::Serialize;

use self::index::{Counts, Index};
use crate::own_pool::refuse_masters;

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The workload: JSON lines with `timestamp` in milliseconds and `hash_ids`, plain or gzipped
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Number of blocks that fit into the pool before eviction starts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) capacity_blocks: u64,
    /// Start a pool too, and move blocks of this size through it
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<ByteSize>,
    /// Lose the leader after this share of the requests, above 0 and below 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) kill_leader_at: Option<f64>,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Parses a share above 0 and below 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("it must be a number above 0 and below 1, such as 0.5".to_owned()),
    }
}

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    requests: usize,
    /// Blocks of all requests.
    blocks: u64,
    different_blocks: u64,
    capacity_blocks: u64,
    /// Share of the blocks that the index served: those of the longest prefix of each request.
    hit_ratio: f64,
    /// The same for a cache of that size that evicts the least recently used block.
    lru: f64,
    /// The same for a cache that evicts the oldest block.
    fifo: f64,
    /// The same for a cache that knows the future (Belady).
    opt: f64,
    evicted: u64,
    /// Puts that found no space.
    refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_lost: Option<LeaderLost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<pool::Report>,
}

/// Effect of the loss of the leader, and of all its soft state, on the hit ratio.
#[derive(Debug, Serialize)]
struct LeaderLost {
    /// Number of requests before it.
    after_requests: usize,
    /// Hit ratio of the rest.
    hit_ratio: f64,
    /// Hit ratio of the rest without it.
    undisturbed: f64,
    /// Hit ratio lost with the leader: the difference of the two ratios above.
    loss: f64,
}

pub(crate) async fn bench(global: &Global, args: &ReplayArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench replay fills a pool of its own")?;
    let (trace, capacity, kill_at) = (args.trace.clone(), args.capacity_blocks, args.kill_leader_at);
    let computed = tokio::task::spawn_blocking(move || {
        let requests = read_trace(&trace)?;
        let report = computed(&requests, capacity, kill_at)?;
        Ok::<_, anyhow::Error>((requests, report))
    });
    let (requests, mut report) = computed.await??;
    if let Some(size) = args.bytes {
        report.pool = Some(pool::replay(&requests, args, size, output).await?);
    }
    output.result(&report, || report.table());
    let good = report.pool.as_ref().is_none_or(|pool| pool.wrong == 0);
    Ok(if good { Ended::Well } else { Ended::Negative })
}

/// Replays the requests through an index, and through the caches to compare it with.
fn computed(requests: &[Request], capacity_blocks: u64, kill_at: Option<f64>) -> Result<Report> {
    let cut = kill_at.map(|share| (requests.len() as f64 * share) as usize);
    let (whole, rest) = run(requests, capacity_blocks, cut, false)?;
    let leader_lost = match cut {
        None => None,
        Some(after_requests) => {
            let (_, disturbed) = run(requests, capacity_blocks, cut, true)?;
            let (hit_ratio, undisturbed) = (disturbed.ratio(), rest.ratio());
            Some(LeaderLost {
                after_requests,
                hit_ratio,
                undisturbed,
                loss: rounded(undisturbed - hit_ratio),
            })
        }
    };
    let different = requests.iter().flat_map(|request| &request.blocks).collect::<HashSet<_>>().len() as u64;
    let capacity = Capacity::blocks(capacity_blocks);
    let share = |hits| ratio(hits, whole.blocks);
    Ok(Report {
        bench: "replay",
        requests: requests.len(),
        blocks: whole.blocks,
        different_blocks: different,
        capacity_blocks,
        hit_ratio: whole.ratio(),
        lru: share(baseline::lru(requests, capacity)),
        fifo: share(baseline::fifo(requests, capacity)),
        opt: share(baseline::opt(requests, capacity)),
        evicted: whole.evicted,
        refused: whole.refused,
        leader_lost,
        pool: None,
    })
}

/// Replays all requests; returns the counts of all of them, and of those from `cut` on.
fn run(requests: &[Request], capacity: u64, cut: Option<usize>, lose: bool) -> Result<(Counts, Counts)> {
    let mut index = Index::new(capacity)?;
    let mut before = Counts::default();
    let mut progress = Progress::new("requests", requests.len() as u64);
    for (number, request) in requests.iter().enumerate() {
        if cut == Some(number) {
            before = index.counts();
            if lose {
                index.lose_leader();
            }
        }
        index.serve(request);
        progress.set(number as u64);
    }
    let all = index.counts();
    let rest = Counts { hits: all.hits - before.hits, blocks: all.blocks - before.blocks, ..all };
    Ok((all, rest))
}

impl Counts {
    fn ratio(self) -> f64 {
        ratio(self.hits, self.blocks)
    }
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "replay: {} requests, {} blocks ({} different) through a pool of {} blocks\n  \
             hit ratio {:.4}; LRU {:.4}, FIFO {:.4}, optimum {:.4}\n  {} evicted, {} puts refused\n",
            self.requests,
            self.blocks,
            self.different_blocks,
            self.capacity_blocks,
            self.hit_ratio,
            self.lru,
            self.fifo,
            self.opt,
            self.evicted,
            self.refused
        );
        if let Some(lost) = &self.leader_lost {
            text += &format!(
                "  leader lost after {} requests: hit ratio of the rest {:.4}, without the loss {:.4}\n",
                lost.after_requests, lost.hit_ratio, lost.undisturbed
            );
        }
        if let Some(pool) = &self.pool {
            text += &pool.table();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversations that come back after their leases with their whole prompt and one block more.
    fn conversations(turns: u64, of: u64) -> Vec<Request> {
        let request = |turn: u64, who: u64| Request {
            timestamp: (turn * of + who) * 1_000,
            blocks: (0..=turn).map(|block| who * 1_000 + block).collect(),
        };
        (0..turns).flat_map(|turn| (0..of).map(move |who| request(turn, who))).collect()
    }

    #[test]
    fn a_pool_with_room_for_all_hits_all_that_came_before() {
        let report = computed(&conversations(10, 20), 1_000, Some(0.5)).unwrap();
        assert_eq!(report.evicted, 0);
        assert!(report.hit_ratio == report.opt && report.opt == report.lru, "{report:?}");
        assert_eq!(report.leader_lost.unwrap().loss, 0.0);
    }

    #[test]
    fn a_pool_that_is_too_small_evicts_and_still_takes_every_put() {
        let report = computed(&conversations(20, 20), 200, Some(0.5)).unwrap();
        assert!(report.evicted > 0 && report.refused == 0, "{report:?}");
        assert!(report.hit_ratio <= report.opt && report.fifo <= report.opt, "{report:?}");
    }
}
