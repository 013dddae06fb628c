//! A session with one leader: the mount, then heartbeats until something ends them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{Fuse, FusedFuture as _};
use mc_discovery::{Backoff, LONGEST_SPREAD, Leader};
use mc_proto::v1;
use mc_transfer::DataEncryption;
use mc_types::{
    ClusterId, ClusterTime, Code, GRANT_FORMAT, Grant, NodeId, STORE_INCARNATION, SegmentEpoch, TlsLevel,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tracing::{info, warn};

use super::keys::Keys;
use super::status::LinkStatus;
use super::{LinkTls, Registration, Served, StoreInfo};
use crate::transports::TransportReport;

type Client = v1::master_client::MasterClient<Channel>;

/// Time limit of a call. A mount takes at most one replicated commit.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for opening a heartbeat stream. A leader that a whole fleet moves to opens the streams in turn, and
/// believes the stores meanwhile. A stream that is dropped and opened again would be one more to wait for.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// First and longest pause before a change of the segments is mounted again.
const CHANGE_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// One heartbeat of so many says by which transports bytes are moved, and how the store uses TLS.
const BEATS_A_REPORT: u64 = 10;
/// Time without a reply to a heartbeat after which the store leaves the leader.
const SILENCE: Duration = Duration::from_secs(1);

/// How far the time of a new leader may be behind that of the last one, and more: an idle leader logs it once a second.
const TIME_SLACK: Duration = Duration::from_secs(60);

/// Why a session ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The master does not lead; it may know who does.
    NotLeader(Option<Leader>),
    /// The master ended the stream without an error, because the connection is old or the master is stopping.
    Closed,
    /// The connection broke, or the master did not answer.
    Broken(String),
    /// The leader is too busy for a mount at the moment.
    Busy,
    /// The masters have dropped this epoch for good, or don't take it up. The reason is empty in the answer to a heartbeat.
    Dead(String),
    /// The masters have mounted this epoch at an order at which they can't know all that was written.
    Behind { order: u64 },
    /// The master refuses this store until a person changes something.
    Refused(String),
    /// The master refuses this mount: it has other segments under this epoch, or another owner of them.
    Misfit(String),
}

/// The store's side of a session with one leader.
pub(crate) struct Session<'a> {
    pub(crate) info: &'a StoreInfo,
    pub(crate) registration: Registration,
    /// Highest order of a write that was there before: see `Following`.
    pub(crate) written: Option<u64>,
    pub(crate) keys: &'a Keys,
    pub(crate) status: &'a LinkStatus,
    pub(crate) served: &'a dyn Served,
    pub(crate) tls: &'a LinkTls,
    pub(crate) leader: &'a Leader,
    pub(crate) client: Client,
    pub(crate) replies: &'a Replies,
}

/// Replies to the mounts and heartbeats of one session.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// Term of the last one; 0 before the first.
    last_term: AtomicU64,
}

impl Replies {
    fn note(&self, term: u64) {
        self.last_term.store(term, Ordering::Relaxed);
    }

    /// Returns the term in which the master led that sent the last reply. `named` is the leader that the session was begun with.
    fn term(&self, named: &Leader) -> u64 {
        self.last_term.load(Ordering::Relaxed).max(named.term)
    }

    /// Decides whether the session with `leader` goes on now that `next` is named as the leader.
    ///
    /// - No reply yet: its connection may be dead, which its own time limits find out seconds later. A new session, over a new
    ///   connection, costs no store its heartbeats: there are none yet.
    /// - A reply in the term of `next`, or in a newer one: the master that sent it led after `next`, since terms order
    ///   leaders. The news is late.
    /// - The same master leads a newer term: its heartbeats go on. A closed stream would make this store suspect until the
    ///   next one is open, and its objects would miss meanwhile.
    pub(crate) fn keep_session(&self, leader: &Leader, next: &Leader) -> bool {
        match self.last_term.load(Ordering::Relaxed) {
            0 => false,
            replied => next.term <= replied || (next.node == leader.node && next.address == leader.address),
        }
    }
}

impl Session<'_> {
    /// Runs the session and returns why it ended.
    ///
    /// `mounted` says whether a leader of this cluster has mounted this epoch before. Mounts are replicated, so after a
    /// failover only the heartbeats move.
    pub(crate) async fn run(self, mounted: bool) -> SessionEnd {
        let mut wanted = self.status.wanted();
        if !mounted && let Err(end) = self.mount().await {
            return end;
        }
        let (beats, requests) = mpsc::channel(4);
        // Queue the first heartbeat before the call: a master may wait for it before it answers.
        let mut sequence = 1;
        if beats.try_send(self.beat(sequence)).is_err() {
            return SessionEnd::Broken("the stream closed at once".to_owned());
        }
        let mut replies = match open(self.client.clone(), requests).await {
            Ok(replies) => replies,
            Err(end) => return end,
        };
        let mut tick = tokio::time::interval(self.status.get().heartbeat);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.reset();
        let (mut heard, mut is_first) = (Instant::now(), true);
        // A change of the segments or of the key is mounted beside the heartbeats: a leader that can't commit it, or refuses it,
        // keeps believing the store.
        let mounting = Fuse::terminated();
        tokio::pin!(mounting);
        if !self.status.all_mounted() || self.keys.is_new() {
            mounting.set(self.mount_change().fuse());
        }
        loop {
            tokio::select! {
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return SessionEnd::Broken("the store has ended".to_owned());
                    }
                    // Another mount may be under way: the masters keep the newer list, in whatever order they arrive.
                    mounting.set(self.mount_change().fuse());
                }
                ended = &mut mounting => {
                    if let Some(end) = ended {
                        return end;
                    }
                }
                _ = tick.tick() => {
                    if heard.elapsed() > SILENCE {
                        return SessionEnd::Broken(format!("no reply for {SILENCE:?}"));
                    }
                    sequence += 1;
                    // A full stream still holds unsent heartbeats, so one more is not needed.
                    if let Err(mpsc::error::TrySendError::Closed(_)) = beats.try_send(self.beat(sequence)) {
                        return SessionEnd::Broken("the master closed the stream".to_owned());
                    }
                }
                reply = replies.message() => match reply {
                    Ok(Some(reply)) => {
                        heard = Instant::now();
                        if !reply.mounted {
                            // `hear` mounts all segments.
                            mounting.set(Fuse::terminated());
                        }
                        if let Err(end) = self.hear(reply, is_first).await {
                            return end;
                        }
                        is_first = false;
                        if self.keys.is_new() && mounting.is_terminated() {
                            mounting.set(self.mount_change().fuse());
                        }
                        if tick.period() != self.status.get().heartbeat {
                            tick = tokio::time::interval(self.status.get().heartbeat);
                            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
                        }
                    }
                    Ok(None) => return SessionEnd::Closed,
                    Err(status) => return ended(&status),
                },
            }
        }
    }

    /// Mounts the segments and the key as they are wanted now, and tries again until the leader has. Returns why the session ends, if
    /// the leader can't do it at all.
    async fn mount_change(&self) -> Option<SessionEnd> {
        let mut pace = Backoff::new(CHANGE_RETRY.0, CHANGE_RETRY.1);
        loop {
            match self.mount().await {
                Ok(()) => return None,
                Err(end @ (SessionEnd::NotLeader(_) | SessionEnd::Dead(_) | SessionEnd::Behind { .. })) => {
                    return Some(end);
                }
                Err(end) => warn!(?end, "a change of the segments or of the grant key is not mounted yet"),
            }
            tokio::time::sleep(pace.wait()).await;
        }
    }

    /// Records the cluster time that a master reports.
    fn learn(&self, cluster: Option<ClusterId>, ms: u64) {
        let Some(cluster) = cluster else { return };
        self.served.learn(cluster, ClusterTime(ms));
        self.status.update(|state| state.cluster_time = state.cluster_time.max(ClusterTime(ms)));
    }

    /// Takes in a reply. The first one of a session names all that are shut out, and later ones name them when they change.
    async fn hear(&self, reply: v1::StoreHeartbeatReply, is_first: bool) -> Result<(), SessionEnd> {
        if reply.dead {
            return Err(SessionEnd::Dead(String::new()));
        }
        let cluster = self.status.get().cluster;
        if mc_types::ClusterId::from_bytes(&reply.cluster_id) != cluster {
            return Err(SessionEnd::Refused(
                "it answered a heartbeat in the name of another cluster".to_owned(),
            ));
        }
        self.replies.note(reply.term);
        self.tls.follow(reply.tls_level);
        if reply.shut_out.is_some() || is_first {
            self.served.shut_out(reply.shut_out.unwrap_or_default().callers.into_iter().collect());
        }
        // Last: before a store knows the time it serves nobody.
        self.learn(cluster, reply.cluster_time_ms);
        let spread = Duration::from_millis(reply.spread_ms.into()).min(LONGEST_SPREAD);
        self.status.update(|state| state.spread = spread);
        if !reply.mounted {
            self.status.update(|state| state.mounted_at = None);
            return self.mount().await;
        }
        self.status.beat(reply.term);
        if reply.grant_key_may_change
            && let Some(key) = self
                .keys
                .next(self.status.now(), TlsLevel::of_number(reply.tls_level) == Some(TlsLevel::Require))
        {
            // Before the leader has it: its next grant may be sealed with it.
            self.served.take_next_key(key);
        }
        Ok(())
    }

    async fn mount(&self) -> Result<(), SessionEnd> {
        let (segments, key) = (self.status.wanted().borrow().clone(), self.keys.offered());
        let (data, http_address) = match self.info.advertised.towards(&self.leader.address).await {
            Ok(addresses) => addresses,
            Err(err) => return Err(SessionEnd::Broken(format!("no local address routes there: {err}"))),
        };
        let format = (GRANT_FORMAT.to_owned(), Grant::FORMAT.to_string());
        let mut attributes = HashMap::from([format]);
        if self.info.data_encryption == DataEncryption::Off {
            attributes.extend([DataEncryption::Off.attribute()]);
        }
        if self.registration.incarnation > 1 {
            attributes.insert(STORE_INCARNATION.to_owned(), self.registration.incarnation.to_string());
        }
        let tcp = v1::Endpoint { transport: "tcp".into(), address: data, attributes };
        let request = v1::MountStoreRequest {
            caller: Some(caller(self.info, self.status, self.leader.node)),
            store_id: Bytes::copy_from_slice(&self.info.store.to_bytes()),
            name: self.info.name.clone(),
            epoch: epoch_bytes(self.registration.epoch),
            grant_key: Bytes::copy_from_slice(&key.0),
            endpoints: vec![tcp],
            segment_bytes: segments.clone(),
            http_address,
        };
        let reply = match tokio::time::timeout(CALL_TIMEOUT, self.client.clone().mount_store(request)).await {
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) => return Err(ended(&status)),
            Err(_) => return Err(SessionEnd::Broken("the mount was not answered in time".to_owned())),
        };
        let cluster = self.status.get().cluster;
        if mc_types::ClusterId::from_bytes(&reply.cluster_id) != cluster {
            return Err(SessionEnd::Refused("it answered a mount in the name of another cluster".to_owned()));
        }
        // Before a time is learned: until then this store serves nobody.
        if let Some(written) = self.written {
            let time = ClusterTime(reply.cluster_time_ms);
            if reply.order <= written || time.after(TIME_SLACK) < self.status.get().cluster_time {
                return Err(SessionEnd::Behind { order: reply.order });
            }
            self.served.refuse_writes_up_to(reply.order);
        }
        self.learn(cluster, reply.cluster_time_ms);
        // It has led at least in the term that it was named with.
        self.replies.note(self.replies.term(self.leader));
        self.status.update(|state| {
            state.mounts += 1;
            // Zero leaves the interval to the store. The bounds keep a master's mistake from silencing the store.
            if reply.heartbeat_ms > 0 {
                state.heartbeat = Duration::from_millis(reply.heartbeat_ms.clamp(10, 10_000));
            }
        });
        let term = self.replies.term(self.leader);
        self.status.beat(term);
        info!(
            leader = self.leader.address,
            term,
            epoch = %self.registration.epoch,
            bytes = segments.iter().sum::<u64>(),
            "mounted"
        );
        if self.keys.mounted(key, self.status.now()) {
            self.served.confirm_key(ClusterTime(reply.cluster_time_ms));
            self.status.update(|state| state.key_changes += 1);
            info!("the masters have the new key of this store's grants");
        }
        self.served.mounted(&segments);
        self.status.note_mounted(segments);
        Ok(())
    }

    fn beat(&self, sequence: u64) -> v1::StoreHeartbeat {
        let reports = sequence % BEATS_A_REPORT == 1;
        v1::StoreHeartbeat {
            caller: Some(caller(self.info, self.status, self.leader.node)),
            store_id: Bytes::copy_from_slice(&self.info.store.to_bytes()),
            epoch: epoch_bytes(self.registration.epoch),
            sequence,
            transports: if reports { self.transports() } else { Vec::new() },
            tls: reports.then(|| self.tls.report()),
        }
    }

    fn transports(&self) -> Vec<v1::TransportStatus> {
        let to_wire = |report: TransportReport| v1::TransportStatus {
            name: report.name.to_owned(),
            offered: report.offered,
            how: report.how,
            read_bytes: report.bytes_read,
            written_bytes: report.bytes_written,
        };
        self.served.transports().into_iter().map(to_wire).collect()
    }
}

/// Asks `leader` whether it has this epoch mounted; returns the time of its cluster if it has.
pub(crate) async fn knows(
    client: Client,
    info: &StoreInfo,
    status: &LinkStatus,
    leader: &Leader,
    epoch: SegmentEpoch,
) -> Result<Option<ClusterTime>, SessionEnd> {
    let (beats, requests) = mpsc::channel(1);
    let beat = v1::StoreHeartbeat {
        caller: Some(caller(info, status, leader.node)),
        store_id: Bytes::copy_from_slice(&info.store.to_bytes()),
        epoch: epoch_bytes(epoch),
        sequence: 1,
        ..v1::StoreHeartbeat::default()
    };
    if beats.try_send(beat).is_err() {
        return Err(SessionEnd::Broken("the stream closed at once".to_owned()));
    }
    let mut replies = open(client, requests).await?;
    match tokio::time::timeout(CALL_TIMEOUT, replies.message()).await {
        Ok(Ok(Some(reply))) => {
            Ok((reply.mounted && !reply.dead).then_some(ClusterTime(reply.cluster_time_ms)))
        }
        Ok(Ok(None)) => Err(SessionEnd::Broken("the master closed the stream".to_owned())),
        Ok(Err(status)) => Err(ended(&status)),
        Err(_) => Err(SessionEnd::Broken("the heartbeat was not answered in time".to_owned())),
    }
}

/// Unmounts the memory at `leader`.
pub(crate) async fn unmount(
    mut client: Client,
    info: &StoreInfo,
    status: &LinkStatus,
    leader: &Leader,
    epoch: SegmentEpoch,
) -> Result<(), SessionEnd> {
    let request = v1::UnmountStoreRequest {
        caller: Some(caller(info, status, leader.node)),
        store_id: Bytes::copy_from_slice(&info.store.to_bytes()),
        epoch: epoch_bytes(epoch),
    };
    match tokio::time::timeout(CALL_TIMEOUT, client.unmount_store(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(ended(&status)),
        Err(_) => Err(SessionEnd::Broken("the unmount was not answered in time".to_owned())),
    }
}

fn caller(info: &StoreInfo, status: &LinkStatus, node: NodeId) -> v1::Caller {
    let cluster = status.get().cluster;
    v1::Caller {
        cluster_id: cluster.map(|id| Bytes::copy_from_slice(&id.to_bytes())).unwrap_or_default(),
        node_id: Bytes::copy_from_slice(&node.to_bytes()),
        client_id: Bytes::copy_from_slice(&u128::from(info.store.0).to_be_bytes()),
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
    }
}

fn epoch_bytes(epoch: SegmentEpoch) -> Bytes {
    Bytes::copy_from_slice(&epoch.to_bytes())
}

/// Maps a failed call to the end of the session.
fn ended(status: &tonic::Status) -> SessionEnd {
    let Some(detail) = mc_proto::detail_of(status) else {
        return SessionEnd::Broken(mc_proto::reason_of(status));
    };
    match Code::try_from(detail.code) {
        Ok(Code::NotLeader | Code::NoLeader) => SessionEnd::NotLeader(Leader::read(detail.leader.as_ref())),
        Ok(Code::StoreEpochDead) => SessionEnd::Dead(detail.message),
        Ok(Code::ResourceExhausted) => SessionEnd::Busy,
        // Another node or cluster answered there: look for the leader again.
        Ok(Code::WrongNode | Code::WrongCluster) => SessionEnd::Broken(detail.message),
        Ok(Code::InvalidParams) => SessionEnd::Misfit(detail.message),
        Ok(
            Code::VersionSkew
            | Code::SegmentAlreadyExists
            | Code::NotSupported
            | Code::Unauthenticated
            | Code::PermissionDenied,
        ) => SessionEnd::Refused(detail.message),
        _ => SessionEnd::Broken(detail.message),
    }
}

async fn open(
    mut client: Client,
    beats: mpsc::Receiver<v1::StoreHeartbeat>,
) -> Result<tonic::Streaming<v1::StoreHeartbeatReply>, SessionEnd> {
    match tokio::time::timeout(OPEN_TIMEOUT, client.heartbeat(ReceiverStream::new(beats))).await {
        Ok(Ok(replies)) => Ok(replies.into_inner()),
        Ok(Err(status)) => Err(ended(&status)),
        Err(_) => Err(SessionEnd::Broken("the heartbeat stream was not opened in time".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(node: u64, term: u64) -> Leader {
        Leader { node: NodeId(node), address: format!("m{node}:1"), term }
    }

    #[test]
    fn a_session_without_a_reply_is_left_even_for_the_same_master() {
        let replies = Replies::default();
        assert!(!replies.keep_session(&leader(1, 5), &leader(1, 6)), "its connection may be dead");
        replies.note(5);
        assert!(replies.keep_session(&leader(1, 5), &leader(1, 6)));
        assert!(!replies.keep_session(&leader(1, 5), &leader(2, 6)));
    }

    #[test]
    fn a_session_is_not_left_for_a_leader_before_its_last_reply() {
        let replies = Replies::default();
        replies.note(7);
        assert!(
            replies.keep_session(&leader(1, 5), &leader(2, 6)),
            "it led between the two terms of this one"
        );
        assert!(!replies.keep_session(&leader(1, 5), &leader(2, 8)));
        assert_eq!(replies.term(&leader(1, 5)), 7);
    }
}
