use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use futures::future::join_all;
use mc_client::StoreId;
use mc_tests::checker::{Operation, Outcome};
use mc_tests::service::{Service, unserved};
use mc_tests::{Cluster, Fault, Machine, Recorder, Running, SmallDisk, until};
use tokio::time::Instant;

/// A leader that can't run, or whose disk stands still, for so long may lose its term without a fault of its own.
pub(crate) const STALL: Duration = Duration::from_millis(150);

/// A master, and the term that it led.
#[derive(Clone, Copy)]
struct Reign {
    master: usize,
    term: u64,
}

/// One round, while it goes on.
pub(crate) struct Round<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) running: &'a Running,
    /// Counts from 0.
    pub(crate) number: usize,
    /// The masters' disks, in a row of [`crate::row::Row::small_disks`].
    pub(crate) disks: &'a [SmallDisk],
    machine: &'a Machine,
    service: Service,
    begun: std::time::Instant,
    happened: &'a Fault,
    bent_before: u64,
    /// Where misses are let pass.
    unreachable: Option<Range<u64>>,
    /// The store whose memory is gone, and since when.
    gone: Option<(StoreId, u64)>,
    discarded: RefCell<Option<String>>,
    /// Time of the history from which service is judged.
    counted_from: u64,
    /// The leader that the fault is meant for.
    meant: Cell<Option<Reign>>,
    /// It led when the fault came.
    led: Cell<bool>,
}

/// Facts about a round that its judgement needs after its end.
pub(crate) struct EndedRound {
    pub(crate) begun: std::time::Instant,
    /// Time of the history from which service is judged.
    pub(crate) counted_from: u64,
    pub(crate) unreachable: Option<Range<u64>>,
    pub(crate) gone: Option<(StoreId, u64)>,
    /// Reason for which the round does not count.
    pub(crate) discarded: Option<String>,
}

impl<'a> Round<'a> {
    /// Begins a round of a row that promises `service`; `happened` counts the faults that struck.
    pub(crate) fn begin(
        number: usize,
        service: Service,
        cluster: &'a mut Cluster,
        running: &'a Running,
        disks: &'a [SmallDisk],
        machine: &'a Machine,
        happened: &'a Fault,
    ) -> Self {
        Self {
            bent_before: cluster.links().bent(),
            cluster,
            running,
            number,
            disks,
            machine,
            service,
            begun: std::time::Instant::now(),
            happened,
            unreachable: None,
            gone: None,
            discarded: RefCell::default(),
            counted_from: running.recorder().now(),
            meant: Cell::new(None),
            led: Cell::new(false),
        }
    }

    /// Ends the round.
    pub(crate) fn end(self) -> EndedRound {
        EndedRound {
            begun: self.begun,
            counted_from: self.counted_from,
            unreachable: self.unreachable,
            gone: self.gone,
            discarded: self.discarded.into_inner(),
        }
    }

    /// The master that leads. The fault is meant for it as the leader: a round in which [`Self::hit`] does not find that
    /// it led does not count.
    pub(crate) async fn leader(&self) -> usize {
        let mut found = None;
        until("a master leads", async || {
            let Some(master) = self.cluster.find_leader().await else { return false };
            // The others may have taken their time to answer: it says so once more.
            let status = self.cluster.status(master).await.filter(|status| status.role == "leader");
            found = status.map(|status| Reign { master, term: status.term });
            found.is_some()
        })
        .await;
        self.meant.set(found);
        found.expect("it was found").master
    }

    /// For right after the fault has come: whether the leader that it was meant for led still. It did when no other master
    /// has heard of a newer term yet, since nobody is elected, that leader neither, without the vote of one of them. A round
    /// whose fault missed the leader is discarded.
    pub(crate) async fn hit(&self) {
        let Some(Reign { master, term }) = self.meant.get() else { return };
        let others = (0..self.cluster.masters.len()).filter(|other| *other != master);
        let said = join_all(others.map(|other| self.cluster.status(other))).await;
        self.led.set(said.iter().all(|status| status.as_ref().is_some_and(|status| status.term == term)));
        if !self.led.get() {
            self.discard("another master led, or stood, when the fault came");
        }
    }

    /// The round does not count, and another one takes its place.
    pub(crate) fn discard(&self, why: impl Into<String>) {
        self.discarded.borrow_mut().get_or_insert(why.into());
    }

    /// Asserts a claim of the row, besides the history. Where it does not hold the row fails, unless this machine stood
    /// still for so long during the round that the masters had a reason: then the round is discarded.
    pub(crate) fn claim(&self, holds: bool, what: &str) {
        if holds {
            return;
        }
        let (longest, _) = self.machine.stalls_since(self.begun);
        assert!(
            longest >= STALL,
            "round {}: not so: {what}; this machine stood still for {longest:?} at most",
            self.number
        );
        self.discard(format!("this machine stood still for {longest:?}, and not so: {what}"));
    }

    /// For a fault that keeps clients from what the only store holds, until now: misses are let pass.
    pub(crate) fn unreachable_since(&mut self, since: u64) {
        self.unreachable = Some(since..self.running.recorder().now());
    }

    /// For a fault that takes the memory of a store away: what may lie there may be missed from then on.
    pub(crate) fn gone_since(&mut self, store: StoreId, since: u64) {
        self.gone = Some((store, since));
    }

    /// Waits while the fault lasts: for at least twice as long as clients may be without service, so that no client can wait
    /// the fault out, and for `least`, in which its effects show.
    pub(crate) async fn spell(&self, least: Duration) {
        tokio::time::sleep(least.max(self.service.gap * 2)).await;
    }

    /// Waits until each client has been served for each kind of call that it makes, by calls that begin from now on.
    pub(crate) async fn all_served(&self) {
        all_served(self.running.recorder()).await;
    }

    /// Whether the leader suspects a store.
    pub(crate) async fn is_a_store_suspect(&self) -> bool {
        let leader = self.cluster.leader().await;
        let status = self.cluster.status(leader).await;
        status.is_some_and(|status| status.stores.iter().any(|store| store.state == "suspect"))
    }

    /// The term that each master knows.
    pub(crate) async fn terms(&self) -> Vec<Option<u64>> {
        let all = 0..self.cluster.masters.len();
        let said = join_all(all.map(|master| self.cluster.status(master))).await;
        said.into_iter().map(|status| status.map(|status| status.term)).collect()
    }

    /// Whether the leader that [`Self::leader`] found leads on, in the same term.
    pub(crate) async fn leads_on(&self) -> bool {
        let Some(Reign { master, term }) = self.meant.get() else { return false };
        let status = self.cluster.status(master).await;
        status.is_some_and(|status| status.role == "leader" && status.term == term)
    }

    /// Waits until another master than `old` leads, by its own word, and returns a moment at which that was so.
    pub(crate) async fn another_leads(&self, old: usize) -> Instant {
        until("another master leads", async || {
            self.cluster.find_leader().await.is_some_and(|now| now != old)
        })
        .await;
        Instant::now()
    }

    /// Puts that were begun after `since` and have been acknowledged.
    pub(crate) fn stored_since(&self, since: u64) -> usize {
        let stored = |operation: &Operation| operation.outcome == Outcome::Stored && operation.start > since;
        self.running.recorder().count(stored)
    }

    /// The fault has struck, as its effect shows.
    pub(crate) fn struck(&self) {
        if self.meant.get().is_some() && !self.led.get() {
            self.discard("it was not seen that the leader met the fault");
        }
        if self.discarded.borrow().is_none() {
            self.happened.happened();
        }
    }

    /// The fault was on links: they have held, ended, delayed or lost something.
    pub(crate) fn struck_on_links(&self) {
        assert!(self.cluster.links().bent() > self.bent_before, "nothing met the links' fault");
        self.struck();
    }

    /// From here on service is owed: what came before took the majority, or the clients' way, away.
    pub(crate) fn service_is_owed(&mut self) {
        self.counted_from = self.running.recorder().now();
    }
}

/// Waits until each client has been served for each kind of call that it makes, by calls that begin from now on.
pub(crate) async fn all_served(recorder: &Recorder) {
    let since = recorder.now();
    until("each client is served", async || {
        recorder.look(|operations| unserved(operations, since).is_empty())
    })
    .await;
}
