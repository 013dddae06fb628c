//! A caller that asks one master, whoever leads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_proto::v1::{self, master_client::MasterClient};
use mc_tests::{Cluster, by_hand, until};
use mc_types::PutId;
use parking_lot::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::Status;
use tonic::transport::Channel;

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(30);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many calls must have been sent before it says anything that none was answered.
const ENOUGH: usize = 20;
/// No client of the workload uses it.
const KEY: &str = "asked for directly";

/// A question to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Whether a key is there: a leader answers by its lease, or asks a majority.
    Read,
    /// To start a put: a leader answers when a majority has written that down.
    Put,
}

/// Everything.
pub(crate) const ALL: [Call; 2] = [Call::Read, Call::Put];

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// An answer that only a leader gives.
    Answer,
    /// The master's own word that it does not.
    Refusal,
    /// Not yet, or nothing that the master has said.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    call: Call,
    /// Taken before it was sent.
    sent: Instant,
    heard: Heard,
}

type Record = Arc<Mutex<Vec<Asked>>>;

/// One master, at its own port: past the links, and past every redirection.
#[derive(Clone)]
pub(crate) struct Direct {
    client: MasterClient<Channel>,
    caller: v1::Caller,
}

impl Direct {
    pub(crate) fn to(cluster: &Cluster, master: usize) -> Self {
        let client = by_hand::master_over(&**cluster.network(), cluster.master_address(master));
        Self { client, caller: by_hand::caller() }
    }

    fn caller(&self) -> Option<v1::Caller> {
        Some(self.caller.clone())
    }

    async fn ask(&self, call: Call) -> Result<(), Status> {
        let mut client = self.client.clone();
        match call {
            Call::Read => {
                let keys = vec![Bytes::from_static(KEY.as_bytes())];
                let request = v1::BatchExistRequest { caller: self.caller(), keys, ..Default::default() };
                client.batch_exist(request).await.map(drop)
            }
            Call::Put => {
                // Never ended: nobody finds it, and its place is free again when its deadline has passed.
                let item = v1::PutStartItem {
                    put_id: put_id(),
                    key: Bytes::from_static(KEY.as_bytes()),
                    size: 1,
                    mode: v1::PutMode::Upsert as i32,
                    deadline_ms: 1_000,
                    ..Default::default()
                };
                let items = vec![item];
                let request = v1::BatchPutStartRequest { caller: self.caller(), items, ..Default::default() };
                client.batch_put_start(request).await.map(drop)
            }
        }
    }

    /// Makes the log longer by an entry that ends so many puts, none of which there is: that is logged also where none may
    /// be started.
    pub(crate) async fn lengthen_the_log(&self, puts: usize) {
        let put_ids = (0..puts).map(|_| put_id()).collect();
        let request = v1::BatchPutRevokeRequest { caller: self.caller(), put_ids, ..Default::default() };
        // It may die of it.
        let _ = timeout(PATIENCE, self.client.clone().batch_put_revoke(request)).await;
    }

    /// Asks for a key of so many bytes, which the master makes room for before it refuses it, whether it leads or not.
    pub(crate) async fn take_memory(mut self, bytes: usize) {
        let keys = vec![Bytes::from(vec![b'k'; bytes])];
        let request = v1::BatchExistRequest { caller: self.caller(), keys, ..Default::default() };
        // It may die of it.
        let _ = timeout(PATIENCE, self.client.batch_exist(request)).await;
    }
}

fn put_id() -> Bytes {
    Bytes::copy_from_slice(&PutId::random().to_bytes())
}

/// Asks a leader all the time, also when it is none any more, until dropped.
///
/// An answer to a call that was sent after another master led in a newer term is wrong, whatever it says. The order of
/// the two is certain: both moments are this process' own, that of the call taken before it was sent, the other after the
/// new leader had said that it leads. A majority had voted in the newer term by then. What the old leader proposes after
/// that gets no majority any more; and the voters were bound not to vote before its last lease was over.
pub(crate) struct Witness {
    record: Record,
    asking: JoinHandle<()>,
}

impl Witness {
    /// Returns when the leader has answered everything once.
    pub(crate) async fn of(cluster: &Cluster, leader: usize) -> Self {
        let record = Record::default();
        let asking = tokio::spawn(ask(Direct::to(cluster, leader), Arc::clone(&record)));
        let this = Self { record, asking };
        until("the leader answers", async || {
            ALL.iter().all(|call| this.count(|asked| asked.call == *call && asked.heard == Heard::Answer) > 0)
        })
        .await;
        this
    }

    fn count(&self, wanted: impl Fn(&Asked) -> bool) -> usize {
        self.record.lock().iter().filter(|asked| wanted(asked)).count()
    }

    /// Whether it has answered a read that was sent after `since`.
    pub(crate) fn has_read_since(&self, since: Instant) -> bool {
        self.count(|asked| asked.call == Call::Read && asked.sent > since && asked.heard == Heard::Answer) > 0
    }

    /// Whether it has refused, in its own words, something that was sent after `since`.
    pub(crate) fn has_refused_since(&self, since: Instant) -> bool {
        self.count(|asked| asked.sent > since && asked.heard == Heard::Refusal) > 0
    }

    /// Waits until it has been asked for a while since then.
    pub(crate) async fn was_asked_since(&self, since: Instant) {
        until("it is asked", async || self.count(|asked| asked.sent > since) >= ENOUGH * ALL.len()).await;
    }

    /// Waits until it has been asked for a while since then, and fails if any of that was answered. To be called while it
    /// cannot have become a leader again.
    pub(crate) async fn stays_unanswered(&self, calls: &[Call], since: Instant) {
        let of_these = |asked: &Asked| calls.contains(&asked.call) && asked.sent > since;
        until("it is asked", async || self.count(of_these) >= ENOUGH).await;
        let answered = self.count(|asked| of_these(asked) && asked.heard == Heard::Answer);
        assert_eq!(answered, 0, "calls were answered by a master that had no majority any more");
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

async fn ask(direct: Direct, record: Record) {
    // Ended with this.
    let mut calls = JoinSet::new();
    let mut times = interval(EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        while calls.try_join_next().is_some() {}
        for call in ALL {
            calls.spawn(ask_once(direct.clone(), call, Arc::clone(&record)));
        }
    }
}

async fn ask_once(direct: Direct, call: Call, record: Record) {
    let at = {
        let mut record = record.lock();
        record.push(Asked { call, sent: Instant::now(), heard: Heard::Nothing });
        record.len() - 1
    };
    let heard = match timeout(PATIENCE, direct.ask(call)).await {
        Ok(Ok(())) => Heard::Answer,
        Ok(Err(status)) if mc_proto::detail_of(&status).is_some() => Heard::Refusal,
        Ok(Err(_)) | Err(_) => Heard::Nothing,
    };
    record.lock()[at].heard = heard;
}
