//! Bursts of single calls of one client: how long many spawned puts and gets take, how many of them got a wrong answer, and whether
//! the leader's term rose. The same calls 64 at a time are for comparison. Real masters and a store on this machine.
//!
//!     cargo build --release --bin mcctl
//!     cargo run --release -p mc-tests --example bursts -- 10000

use std::collections::BTreeMap;
use std::time::Instant;

use futures::{StreamExt, stream};
use mc_client::{Client, Error, Put};
use mc_tests::Cluster;
use mc_types::ByteSize;
use tokio::task::JoinSet;

/// Calls at a time for comparison.
const FEW: usize = 64;
const VALUE: [u8; 100] = [7; 100];

fn key(kind: &str, n: usize) -> String {
    format!("{kind}/{n:06}")
}

async fn put(client: Client, kind: &'static str, n: usize) -> &'static str {
    match client.put(key(kind, n), &VALUE).await {
        Ok(Put::Stored) => "right",
        Ok(Put::LocalOnly) => "local only",
        Ok(Put::AlreadyExists) => "exists",
        Err(error) => name(&error),
    }
}

async fn get(client: Client, kind: &'static str, n: usize) -> &'static str {
    match client.get(key(kind, n)).await {
        Ok(Some(bytes)) if bytes[..] == VALUE => "right",
        Ok(Some(_)) => "other bytes",
        Ok(None) => "miss",
        Err(error) => name(&error),
    }
}

fn name(error: &Error) -> &'static str {
    error.code.name()
}

/// Makes `count` calls, all at once or a few at a time, and prints their results and the time that they took.
async fn run<F>(what: &str, count: usize, at_once: usize, call: impl Fn(usize) -> F)
where
    F: Future<Output = &'static str> + Send + 'static,
{
    let began = Instant::now();
    let mut results: BTreeMap<&str, usize> = BTreeMap::new();
    if at_once < count {
        let mut calls = stream::iter(0..count).map(|n| tokio::spawn(call(n))).buffer_unordered(at_once);
        while let Some(result) = calls.next().await {
            *results.entry(result.expect("a call panicked")).or_default() += 1;
        }
    } else {
        let mut calls = JoinSet::new();
        (0..count).for_each(|n| drop(calls.spawn(call(n))));
        while let Some(result) = calls.join_next().await {
            *results.entry(result.expect("a call panicked")).or_default() += 1;
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{what}, {at_once} at once: {took:.2} s, {:.0} a second, {results:?}", count as f64 / took);
}

async fn term(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    cluster.status(leader).await.map_or(0, |status| status.term)
}

#[tokio::main]
async fn main() {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let cluster = Cluster::builder().segment("512mb").start().await;
    let client = cluster.client_builder().local_cache(ByteSize(0)).connect().await.expect("a client");
    let before = term(&cluster).await;
    let (puts, gets) = (&client, &client);
    run("puts", count, FEW, |n| put(puts.clone(), "few", n)).await;
    run("gets", count, FEW, |n| get(gets.clone(), "few", n)).await;
    run("puts", count, count, |n| put(puts.clone(), "many", n)).await;
    run("gets", count, count, |n| get(gets.clone(), "many", n)).await;
    let stats = client.stats();
    println!(
        "term {before} before, {} after; leaders found {}, local-only mode {} times, calls repeated {}",
        term(&cluster).await,
        stats.leader_changes,
        stats.local_only_entries,
        stats.retries
    );
}
