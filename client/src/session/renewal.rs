//! Get sessions: leases that are renewed, and reads of pinned versions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use mc_discovery::Backoff;
use mc_types::Code;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::RENEWED_FOR;
use super::pinned::{Pinned, READ};
use crate::Error;
use crate::core::{Core, IN_FLIGHT, key_chunks, nonsense};
use crate::get::{ASK_AGAIN, Destination, Get, Got, PendingGet};
use crate::placement::Granted;

/// Shortest and longest pause between renewals that fail.
const RENEW_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// An object that a session reads, and what keeps its lease alive.
#[derive(Clone, Debug)]
pub(crate) struct OpenGet {
    pub(crate) pinned: Arc<Pinned>,
    /// Ends the renewals when the last session of the batch is dropped.
    _renewals: Arc<DropGuard>,
}

/// Slots to read from the placements of one answer.
struct SameGrants<'g, 'a> {
    granted: Arc<Vec<Option<Granted>>>,
    lease: Instant,
    slots: Vec<&'g mut PendingGet<'a>>,
}

/// Opens and reads get sessions until a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionReads<'c> {
    get: Get<'c>,
}

impl<'c> SessionReads<'c> {
    /// Calls that begin now.
    pub(crate) fn new(core: &'c Core) -> Self {
        Self { get: Get::new(core) }
    }

    /// Opens a session for each key that the pool has, with one call to the leader for up to 4,096 keys. Leases are
    /// renewed until the sessions are dropped or `closed`.
    pub(crate) async fn open(
        self,
        keys: Vec<Bytes>,
        closed: &CancellationToken,
    ) -> Vec<Result<Option<OpenGet>, Error>> {
        let opened = self.get.core.by_chunks(READ, keys, |keys| self.pin(keys, closed.child_token())).await;
        opened
            .iter()
            .filter(|result| matches!(result, Ok(None)))
            .for_each(|_| self.get.core.counters.misses.one());
        opened
    }

    async fn pin(
        &self,
        keys: Vec<Bytes>,
        renewals: CancellationToken,
    ) -> Vec<Result<Option<OpenGet>, Error>> {
        let mut answer = match self.get.locate(keys.clone()).await {
            Ok(answer) => answer,
            Err(error) => return vec![Err(error.into_error(READ)); keys.len()],
        };
        let granted = Arc::new(std::mem::take(&mut answer.granted));
        let until = answer.sent_at + RENEWED_FOR;
        let pinned: Vec<_> = keys
            .into_iter()
            .zip(&answer.results)
            .map(|(key, result)| {
                let pinned = Pinned::new(key, result, &granted, &answer, until)?;
                if pinned.is_none() {
                    self.get.core.pool_miss(READ, result)?;
                }
                Ok(pinned.map(Arc::new))
            })
            .collect();
        let pins: Vec<Weak<Pinned>> = pinned.iter().flatten().flatten().map(Arc::downgrade).collect();
        let renewing = renewals.clone().run_until_cancelled_owned(renew(self.get.core.clone(), pins, until));
        self.get.core.leader.runtime.spawn(renewing);
        let renewals = Arc::new(renewals.drop_guard());
        let opened = |pinned| OpenGet { pinned, _renewals: Arc::clone(&renewals) };
        pinned.into_iter().map(|result| Ok(result?.map(opened))).collect()
    }

    /// Renews leases with one call to the leader; at most [`mc_types::MAX_ITEMS`] of them.
    async fn renew(&self, pins: &[&Pinned]) -> Vec<Result<(), Error>> {
        let keys = pins.iter().map(|pin| pin.key.clone()).collect();
        let mut answer = match self.get.locate(keys).await {
            Ok(answer) => answer,
            Err(error) => return vec![Err(error.into_error(READ)); pins.len()],
        };
        let granted = Arc::new(std::mem::take(&mut answer.granted));
        let renewed = pins.iter().zip(&answer.results);
        renewed.map(|(pin, result)| pin.renewed(result, &granted, &answer)).collect()
    }

    /// Reads parts of pinned versions.
    pub(crate) async fn read<'a>(self, items: Vec<(&Pinned, Destination<'a>)>) -> Vec<Result<Got, Error>> {
        let (pins, mut slots): (Vec<&Pinned>, Vec<PendingGet<'a>>) = items
            .into_iter()
            .map(|(pin, destination)| (pin, PendingGet::new(pin.key.clone(), destination)))
            .unzip();
        let (mut rest, mut chunks) = (slots.as_mut_slice(), Vec::new());
        for range in key_chunks(pins.iter().map(|pin| pin.key.len())) {
            let (chunk, after) = rest.split_at_mut(range.len());
            chunks.push(self.read_chunk(&pins[range], chunk));
            rest = after;
        }
        futures::stream::iter(chunks).buffered(IN_FLIGHT).collect::<Vec<()>>().await;
        let result = |slot: PendingGet<'_>| match slot.result {
            Some(Ok(Some(got))) => {
                self.get.core.counters.hits.one();
                Ok(got)
            }
            Some(Ok(None)) => {
                let why = "no replica of the object could be read";
                Err(Error::definite(READ, Code::TransferFail, "the stores", why))
            }
            Some(Err(error)) => Err(error),
            None => Err(nonsense(READ)),
        };
        slots.into_iter().map(result).collect()
    }

    /// Reads with the placements at hand. It asks the leader only about versions whose lease is over or that could not
    /// be read.
    async fn read_chunk(&self, pins: &[&Pinned], slots: &mut [PendingGet<'_>]) {
        let mut pace = Backoff::new(ASK_AGAIN.0, ASK_AGAIN.1);
        let mut first = true;
        while slots.iter().any(|slot| slot.result.is_none()) {
            self.renew_stale(pins, slots, first).await;
            first = false;
            let mut groups: Vec<SameGrants<'_, '_>> = Vec::new();
            for (pin, slot) in pins.iter().zip(slots.iter_mut()).filter(|(_, slot)| slot.result.is_none()) {
                let placement = match pin.placement() {
                    Ok(placement) => placement,
                    Err(error) => {
                        slot.result = Some(Err(error));
                        continue;
                    }
                };
                self.get.expect(slot, placement.object).await;
                let group = groups.iter_mut().find(|group| Arc::ptr_eq(&group.granted, &placement.granted));
                match group {
                    Some(group) => group.slots.push(slot),
                    None => groups.push(SameGrants {
                        granted: placement.granted,
                        lease: placement.lease,
                        slots: vec![slot],
                    }),
                }
            }
            let rounds = groups
                .iter_mut()
                .map(|SameGrants { granted, lease, slots }| self.get.read_round(slots, granted, *lease));
            if join_all(rounds).await.contains(&true) {
                sleep(pace.wait().min(self.get.deadline.saturating_duration_since(Instant::now()))).await;
            }
        }
    }

    /// Renews the versions of open slots: in the first round of a read those whose lease is over, later all, because
    /// they could not be read.
    async fn renew_stale(&self, pins: &[&Pinned], slots: &mut [PendingGet<'_>], first: bool) {
        let now = Instant::now();
        let mut stale = Vec::new();
        for (pin, slot) in pins.iter().zip(slots.iter_mut()).filter(|(_, slot)| slot.result.is_none()) {
            if first && !pin.is_lapsed(now) {
                continue;
            }
            match pin.check_renewable(now) {
                Ok(()) => stale.push((*pin, slot)),
                Err(error) => slot.result = Some(Err(error)),
            }
        }
        if stale.is_empty() {
            return;
        }
        let pins: Vec<&Pinned> = stale.iter().map(|(pin, _)| *pin).collect();
        for ((_, slot), result) in stale.into_iter().zip(self.renew(&pins).await) {
            if let Err(error) = result {
                slot.result = Some(Err(error));
            }
        }
    }
}

/// Renews the leases of a batch of sessions when half of each has passed, until `until` or until no session is left.
async fn renew(core: Core, pins: Vec<Weak<Pinned>>, until: Instant) {
    let mut pace = Backoff::new(RENEW_AGAIN.0, RENEW_AGAIN.1);
    let mut not_before = Instant::now();
    loop {
        let live: Vec<_> = pins.iter().filter_map(Weak::upgrade).collect();
        let Some(next) = live.iter().filter_map(|pin| pin.renew_at()).min() else { return };
        drop(live);
        let next = next.max(not_before);
        if next >= until {
            return;
        }
        sleep_until(next).await;
        // Sessions that were dropped meanwhile need no lease.
        let live: Vec<_> = pins.iter().filter_map(Weak::upgrade).collect();
        let live: Vec<&Pinned> =
            live.iter().map(|pin| &**pin).filter(|pin| pin.renew_at().is_some()).collect();
        let failed = SessionReads { get: Get { core: &core, deadline: until } }
            .renew(&live)
            .await
            .into_iter()
            .find_map(Result::err);
        if let Some(error) = failed {
            tracing::debug!("cannot renew the read lease of a session, trying again: {error}");
        } else {
            pace.reset();
        }
        not_before = Instant::now() + pace.wait();
    }
}
