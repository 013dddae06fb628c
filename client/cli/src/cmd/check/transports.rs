//! `mcctl check transports`: moves a few bytes to and from every store, and says by which transport they went.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use mc_client::{
    ByteSize, Client, Error, PeerReport, PeerTransport, PutMode, PutOptions, StoreState, StoreStatus,
};
use mc_console::{
    Ended, Global, Interrupted, Interrupts, Lacking, NoLeader, Output, address, columns, connect,
    human_bytes, lines_of, or_dash, printable, rounded, state_name,
};
use serde::Serialize;

/// Bytes of the object that each store gets for a moment: enough to be worth every transport.
const PROBE: ByteSize = ByteSize(64 << 10);
/// Number of reads of that object. The first ones open connections, so only the fastest is reported.
const READS: usize = 5;
/// Time limit of the put. A store that does not answer is found sooner.
const WITHIN: Duration = Duration::from_secs(5);
/// Stores that are tried at once.
const AT_ONCE: usize = 4;

#[derive(Serialize)]
struct Document {
    /// Bytes of the object that was put and read.
    probe_bytes: u64,
    stores: Vec<Store>,
}

#[derive(Serialize)]
struct Store {
    store: String,
    name: String,
    addr: String,
    /// alive, suspect, or unknown.
    state: &'static str,
    /// Transport that bytes between this machine and the store go by: shm, rdma or tcp; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    /// Fastest of some reads of the probe, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    get_us: Option<f64>,
    /// Why no bytes were moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The best one first.
    transports: Vec<Transport>,
}

#[derive(Serialize)]
struct Transport {
    name: &'static str,
    usable: bool,
    /// How the transport is used, or the reason why it is not.
    how: String,
    /// Bytes of the probe that went by it; by TCP also requests and answers.
    bytes: u64,
}

/// Tries every store. After a signal it begins no more calls, and removes its objects.
pub(super) async fn transports(global: &Global, output: Output) -> Result<Ended> {
    let mut interrupts = Interrupts::catch().context("cannot catch signals")?;
    let client = interrupts.until(connect::client_of(global)).await??;
    let status = interrupts.until(async { client.admin().status().await }).await?;
    if status.leader.is_none() {
        return Err(NoLeader("no leader says which stores there are".to_owned()).into());
    }
    let stores = status.stores();
    let over = AtomicBool::new(false);
    let probes = futures::stream::iter(stores.iter().map(|store| probe(&client, store, &over)));
    let tried: Vec<_> = interrupts.wind_down(probes.buffered(AT_ONCE).collect(), &over).await?;
    let peers = client.transports();
    let document = Document {
        probe_bytes: PROBE.0,
        stores: stores.iter().zip(tried).map(|(store, tried)| of_store(store, tried, &peers)).collect(),
    };
    output.result(&document, || text(&document));
    let reaches_all = document.stores.iter().all(|store| store.error.is_none());
    Ok(if reaches_all && !document.stores.is_empty() { Ended::Well } else { Ended::Negative })
}

fn of_store(store: &StoreStatus, tried: Result<Duration, String>, peers: &[PeerReport]) -> Store {
    let peer = peers.iter().find(|peer| peer.store == store.store);
    let transports = peer.map(|peer| peer.transports.as_slice()).unwrap_or_default();
    let by = moved_by(transports);
    let of = |PeerTransport { name, usable, how, bytes, .. }: &PeerTransport| Transport {
        name,
        usable: *usable,
        how: how.clone(),
        bytes: *bytes,
    };
    Store {
        store: store.store.to_string(),
        name: store.name.clone(),
        addr: address(store).to_owned(),
        state: state_name(store.state),
        by: by.filter(|_| tried.is_ok()),
        get_us: tried.as_ref().ok().map(|took| rounded(took.as_secs_f64() * 1e6)),
        error: tried.err(),
        transports: transports.iter().map(of).collect(),
    }
}

/// The transport that the bytes of the probe went by: what a transport says of itself may be out of date.
fn moved_by(transports: &[PeerTransport]) -> Option<&'static str> {
    let most = transports.iter().max_by_key(|transport| transport.bytes)?;
    (most.bytes > 0).then_some(most.name)
}

/// Puts an object on the store, reads it and removes it. Returns how long the fastest read took.
async fn probe(client: &Client, store: &StoreStatus, over: &AtomicBool) -> Result<Duration, String> {
    let is_over = || over.load(Ordering::Relaxed);
    if is_over() {
        return Err(Interrupted.to_string());
    }
    if store.state == StoreState::Suspect {
        return Err("it is suspect: the leader does not hear it".to_owned());
    }
    let key = format!("mcctl-check-{:032x}", rand::random::<u128>());
    let options =
        PutOptions::default().with_mode(PutMode::Upsert).with_preferred([store.store]).with_deadline(WITHIN);
    let said = |error: Error| error.to_string();
    let result = async {
        let value = vec![0x5a; usize::try_from(PROBE.0).unwrap_or(0)];
        // A put would go on with another store, and hide why this one failed.
        let session = client.put_session(&key, PROBE.0, &options).await.map_err(said)?;
        let session = session.ok_or("its key exists already")?;
        let finished = async {
            session.write(0, &value).await?;
            session.finish().await
        };
        if let Err(error) = finished.await {
            // The end of this process may come before that of a put that is only dropped.
            let _ = session.abort().await;
            return Err(said(error));
        }
        let placed = client.describe(&key).await.map_err(said)?;
        if !placed.is_some_and(|placed| placed.replicas.iter().any(|replica| replica.store == store.store)) {
            return Err(format!("it had no room for {}", human_bytes(PROBE.0)));
        }
        let mut fastest = Duration::MAX;
        for _ in (0..READS).take_while(|_| !is_over()) {
            let began = Instant::now();
            match client.get(&key).await.map_err(said)? {
                Some(read) if read == value => fastest = fastest.min(began.elapsed()),
                Some(_) => return Err("other bytes came back".to_owned()),
                None => return Err("it did not give the bytes back".to_owned()),
            }
        }
        Ok(fastest)
    };
    let result = result.await;
    // It is evicted like any other object if this fails.
    let removed = client.remove(&key, true).await;
    result.and_then(|fastest| removed.map(|_| fastest).map_err(said))
}

fn text(document: &Document) -> String {
    if document.stores.is_empty() {
        return "no store is mounted".to_owned();
    }
    let get = format!("GET {}", human_bytes(document.probe_bytes));
    let rows = document.stores.iter().map(|store| {
        [
            printable(&store.name).into_owned(),
            printable(&store.addr).into_owned(),
            store.state.to_owned(),
            or_dash(store.by),
            or_dash(store.get_us.map(|us| format!("{us:.0} us"))),
        ]
    });
    let rows = columns(["STORE", "ADDRESS", "STATE", "BY", &get], rows);
    let failed =
        document.stores.iter().filter_map(|store| Some(format!("{}: {}", store.addr, store.error.as_ref()?)));
    // A transport below the one that is used needs no explanation, and a store that no bytes went to has one.
    let reached = document.stores.iter().filter(|store| store.error.is_none());
    let lacking: Vec<_> = reached
        .flat_map(|store| {
            let better = store.transports.iter().take_while(|transport| Some(transport.name) != store.by);
            better.map(|transport| (transport.name, lack(transport, store.by), &store.addr))
        })
        .collect();
    let lacking = lacking.iter().map(|(name, why, at)| Lacking { name, why, at });
    let reasons = lines_of(lacking, document.stores.len());
    let lines: Vec<String> = failed.chain(reasons).collect();
    if lines.is_empty() { rows } else { format!("{rows}\n{}", lines.join("\n")) }
}

/// Why the probe did not go by a transport.
fn lack(transport: &Transport, by: Option<&str>) -> String {
    match (transport.usable, by) {
        (true, Some(by)) => format!("its bytes went by {by}, although it should work ({})", transport.how),
        _ => transport.how.clone(),
    }
}
