//! Puts that were started and will not be ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_discovery::Backoff;
use mc_proto::v1::BatchPutRevokeRequest;
use mc_types::{MAX_GRANT_LIFETIME, MAX_ITEMS, PutId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::{LeaderClient, Repeat};
use crate::Error;
use crate::mode::ClientMode;

/// Shortest and longest pause between tries that fail.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time limit of the last message of a client.
const LAST: Duration = Duration::from_secs(1);

/// Queue of puts to revoke, so that their room is free before their deadlines.
///
/// A call, or its drop, only adds ids. The client's own task sends them, all that wait in one message: it needs no runtime of
/// the caller's. None is lost between the two. The task looks at the queue before it waits, and an addition leaves a permit with
/// which the wait returns at once.
#[derive(Debug, Default)]
pub(crate) struct Revokes {
    queue: Mutex<VecDeque<Abandoned>>,
    added: Notify,
}

/// A put to revoke, and the time at which the masters end it anyway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned {
    put: PutId,
    ends: Instant,
}

/// Puts that the leader has started for a call. They are revoked when this is dropped, unless they were settled.
///
/// It is created with the leader's answer and moves with it: from the message's task, through the channel, to the call.
/// So a put is revoked wherever the answer is dropped, and not before the leader has started it. A call that is sent in
/// its caller's future holds it from before, since no task is left to take the answer if that future is dropped.
#[derive(Debug)]
pub(crate) struct RevokeOnDrop {
    puts: Vec<PutId>,
    revokes: Option<Arc<Revokes>>,
}

impl RevokeOnDrop {
    pub(crate) fn none() -> Self {
        Self { puts: Vec::new(), revokes: None }
    }

    pub(super) fn new(revokes: &Arc<Revokes>, puts: Vec<PutId>) -> Self {
        let revokes = (!puts.is_empty()).then(|| Arc::clone(revokes));
        Self { puts, revokes }
    }

    /// Keeps the puts to which this applies; nothing is to be revoked of the others.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&PutId) -> bool) {
        self.puts.retain(keep);
    }

    /// Returns each put by itself, in their order.
    pub(crate) fn each(mut self) -> impl Iterator<Item = Self> {
        let (puts, revokes) = (std::mem::take(&mut self.puts), self.revokes.take());
        // All of them at once, so that none is lost if the iterator is dropped.
        let each = puts.into_iter().map(|put| Self { puts: vec![put], revokes: revokes.clone() });
        each.collect::<Vec<_>>().into_iter()
    }

    /// Revokes nothing: every put was ended or revoked, or may have been.
    pub(crate) fn disarm(&mut self) {
        self.puts.clear();
    }
}

impl Drop for RevokeOnDrop {
    fn drop(&mut self) {
        if let Some(revokes) = &self.revokes {
            revokes.add(&self.puts);
        }
    }
}

impl Revokes {
    /// Adds puts to revoke.
    pub(crate) fn add(&self, puts: &[PutId]) {
        if puts.is_empty() {
            return;
        }
        let ends = Instant::now() + MAX_GRANT_LIFETIME;
        self.queue.lock().extend(puts.iter().map(|&put| Abandoned { put, ends }));
        self.added.notify_one();
    }

    /// Revokes what is added, for ever.
    pub(crate) async fn run(&self, leader: &LeaderClient, tenant: &str, limit: Duration) {
        let mut mode = leader.mode.subscribe();
        let mut pace = Backoff::new(AGAIN.0, AGAIN.1);
        loop {
            let taken = self.take();
            if taken.is_empty() {
                self.added.notified().await;
                continue;
            }
            let puts: Vec<PutId> = taken.iter().map(|abandoned| abandoned.put).collect();
            let mut unrevoked = Unrevoked { of: self, puts: taken };
            match leader.revoke(&puts, tenant, Instant::now() + limit).await {
                Ok(()) => {
                    unrevoked.puts.clear();
                    pace.reset();
                }
                Err(error) => {
                    tracing::debug!(count = puts.len(), "cannot revoke puts, trying again: {error}");
                    drop(unrevoked);
                    sleep(pace.wait()).await;
                    if mode.wait_for(|mode| matches!(mode, ClientMode::Leader(_))).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Returns once puts were added since the last look.
    pub(crate) async fn more(&self) {
        self.added.notified().await;
    }

    /// Sends what waits to the leader, without a second try: the client ends.
    pub(crate) async fn flush(&self, client: &LeaderClient, tenant: &str) {
        let until = Instant::now() + LAST;
        loop {
            let taken = self.take();
            if taken.is_empty() {
                return;
            }
            let request = request(tenant, taken.iter().map(|abandoned| abandoned.put));
            let masters = &client.masters;
            let Some(leader) = masters.leader() else { return };
            let Ok(mut channel) = masters.channel(&leader.address) else { return };
            let request =
                BatchPutRevokeRequest { caller: Some(masters.caller(Some(leader.node))), ..request };
            if !matches!(timeout_at(until, channel.client.batch_put_revoke(request)).await, Ok(Ok(_))) {
                return;
            }
        }
    }

    /// Takes the puts of one message, without those that have ended by themselves.
    pub(super) fn take(&self) -> Vec<Abandoned> {
        let (mut queue, now) = (self.queue.lock(), Instant::now());
        queue.retain(|abandoned| abandoned.ends > now);
        let count = queue.len().min(MAX_ITEMS);
        queue.drain(..count).collect()
    }
}

/// Puts of a message under way. They go back to the queue unless they are revoked: also if the message is cancelled.
struct Unrevoked<'r> {
    of: &'r Revokes,
    puts: Vec<Abandoned>,
}

impl Drop for Unrevoked<'_> {
    fn drop(&mut self) {
        self.of.queue.lock().extend(self.puts.drain(..));
    }
}

fn request(tenant: &str, puts: impl ExactSizeIterator<Item = PutId>) -> BatchPutRevokeRequest {
    BatchPutRevokeRequest { caller: None, tenant: tenant.to_owned(), put_ids: id_bytes(puts).collect() }
}

impl LeaderClient {
    /// Frees the room of puts, and returns once it is free.
    pub(crate) async fn revoke(&self, puts: &[PutId], tenant: &str, deadline: Instant) -> Result<(), Error> {
        for puts in puts.chunks(MAX_ITEMS) {
            let request = request(tenant, puts.iter().copied());
            let revoked = self.call(&request, deadline, Repeat::Freely).await;
            revoked.map_err(|error| error.into_error("put revoke"))?;
        }
        Ok(())
    }
}

/// Encodes put ids for a request, in one shared allocation.
pub(crate) fn id_bytes(puts: impl ExactSizeIterator<Item = PutId>) -> impl Iterator<Item = Bytes> {
    let mut all = Vec::with_capacity(puts.len() * size_of::<PutId>());
    puts.for_each(|put| all.extend_from_slice(&put.to_bytes()));
    let mut all = Bytes::from(all);
    std::iter::from_fn(move || (!all.is_empty()).then(|| all.split_to(size_of::<PutId>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(revokes: &Revokes) -> Vec<u128> {
        revokes.take().iter().map(|abandoned| abandoned.put.0).collect()
    }

    #[test]
    fn puts_are_revoked_where_the_answer_is_dropped_unless_they_are_settled() {
        let revokes = Arc::new(Revokes::default());
        let started =
            |puts: &[u128]| RevokeOnDrop::new(&revokes, puts.iter().map(|put| PutId(*put)).collect());
        drop(started(&[1, 2]));
        started(&[3]).disarm();
        let mut some = started(&[4, 5, 6]);
        some.retain(|put| put.0 != 5);
        let mut each = some.each();
        each.next().unwrap().disarm();
        drop(each);
        assert_eq!(queued(&revokes), [1, 2, 6]);
    }

    #[test]
    fn puts_of_a_message_that_is_cancelled_wait_again_and_those_that_have_ended_do_not() {
        let revokes = Revokes::default();
        revokes.add(&[PutId(1), PutId(2)]);
        let taken = revokes.take();
        assert_eq!((taken.len(), queued(&revokes).len()), (2, 0));
        drop(Unrevoked { of: &revokes, puts: taken });
        revokes.queue.lock().push_back(Abandoned { put: PutId(3), ends: Instant::now() });
        assert_eq!(queued(&revokes), [1, 2]);
    }

    #[test]
    fn a_message_has_a_bounded_number_of_puts() {
        let revokes = Revokes::default();
        revokes.add(&vec![PutId(1); MAX_ITEMS + 1]);
        assert_eq!([queued(&revokes).len(), queued(&revokes).len()], [MAX_ITEMS, 1]);
    }
}
