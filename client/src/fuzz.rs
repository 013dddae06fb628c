//! Entry points for tests/fuzz that decode masters' answers as a client does. Each returns whether the answer is
//! usable.

use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use mc_discovery::{ClusterReport, Leader, Listed, read_hello, read_update};
use mc_net::{ChannelOptions, TcpNetwork, endpoint};
use mc_proto::{
    detail_of, status_of,
    v1::{
        BatchDescribeReply, BatchExistReply, BatchExistRequest, BatchGetReply, BatchGetRequest,
        BatchPutStartReply, ErrorDetail, HelloReply, WatchEvent,
    },
};
use mc_types::{ByteSize, ClusterId, Code, NodeId, StoreId};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::Description;
use crate::admin::Lookup;
use crate::avoid::AvoidList;
use crate::call::{Joined, failure_of};
use crate::config::Config;
use crate::core::ApplyChanges;
use crate::keys::read_presences;
use crate::local::Local;
use crate::masters::{MasterList, Masters};
use crate::metrics::Counters;
use crate::mode::ModeSwitch;
use crate::placement::{Granted, Place, described, grants, lease_end, places};
use crate::put::{PendingPut, PutItem, PutStep, StartRefusal, StartedPut};

/// Cluster of the fake master.
const CLUSTER: ClusterId = ClusterId(7);
/// Address of the only listed master.
const ADDRESS: &str = "a:50051";
const NODE: NodeId = NodeId(1);

/// Processes a master's answer to a hello; returns whether the client knows a leader afterwards.
pub fn hello(reply: &HelloReply) -> bool {
    let Some(masters) = unmet() else { return false };
    let Ok(report) = read_hello(reply.clone()) else { return false };
    masters.greeted(ADDRESS, report);
    knows_leader(&masters)
}

/// Processes an event of a watched master; returns whether the client knows a leader afterwards.
pub fn watch(event: &WatchEvent) -> bool {
    let Some(masters) = met() else { return false };
    let read = read_update(event.clone());
    assert!(read.stores.len() <= event.stores.len(), "each store is judged once");
    masters.watched(ADDRESS, read);
    knows_leader(&masters)
}

/// Processes a master's refusal of a call; returns whether the client knows a leader afterwards.
pub fn refusal(detail: &ErrorDetail) -> bool {
    let status = status_of(detail);
    black_box(failure_of(&status));
    let Some(detail) = detail_of(&status) else { return false };
    let Some(masters) = met() else { return false };
    let from = Leader { node: NODE, address: ADDRESS.to_owned(), term: 1 };
    masters.foreign(&from, &detail.theirs, Instant::now());
    masters.redirected(&from, Leader::read(detail.leader.as_ref()));
    knows_leader(&masters)
}

/// Processes an answer with placements; returns whether every object that it found has a usable place.
pub fn get(reply: &BatchGetReply) -> bool {
    let sent_at = Instant::now();
    assert!(lease_end(sent_at, reply.lease_ms) >= sent_at, "a lease does not end before it began");
    let each = BatchGetRequest::split(reply.clone(), &vec![1; reply.results.len()]);
    for reply in each.expect("there are as many calls as results") {
        assert!(reply.grants.len() <= reply.results[0].replicas.len(), "a call has its own grants only");
    }
    let granted = grants(CLUSTER, reply.grants.clone(), sent_at);
    reply.results.iter().filter(|result| result.code == Code::Ok as i32).all(|result| {
        if let Some(looked_up) = Lookup::read(result, &reply.grants) {
            assert_eq!(looked_up.replicas.len(), result.replicas.len(), "each replica is shown");
        }
        let Some(object) = described(result, &granted) else { return false };
        check(object.places.iter(), &granted);
        !object.places.is_empty()
    })
}

/// Processes an answer to an existence check; returns whether it says something of every key.
pub fn exist(reply: &BatchExistReply) -> bool {
    let count = reply.packed.as_ref().map_or(reply.results.len(), |packed| packed.states.len());
    let Some(each) = BatchExistRequest::split(reply.clone(), &vec![1; count]) else { return false };
    assert_eq!(each.len(), count, "each call has an answer");
    each.iter().all(|reply| read_presences(reply, 1).is_some())
}

/// Processes descriptions; returns whether every object that was found is described.
pub fn describe(reply: &BatchDescribeReply) -> bool {
    let found = reply.results.iter().filter(|result| result.code == Code::Ok as i32);
    found.map(Description::read).all(|described| described.is_some())
}

/// Processes an answer to put starts; returns whether every started put has a usable place.
pub fn put_start(reply: &BatchPutStartReply) -> bool {
    let item = &PutItem::of_values([(&b"key"[..], &b"value"[..])].into_iter())[0];
    let granted = grants(CLUSTER, reply.grants.clone(), Instant::now());
    let refused = StartRefusal { no_space: reply.no_space.clone(), largest_segment: reply.largest_segment };
    reply.results.iter().all(|result| {
        let Ok(put) = PendingPut::new(0, item) else { return false };
        if result.code != Code::Ok as i32 {
            black_box(PutStep::not_started(put, result.code, &[StoreId(7)], &refused));
            return true;
        }
        let usable: Vec<_> = places(&result.replicas, &granted, put.size).collect();
        check(usable.iter().map(|(_, place)| place), &granted);
        let written = StartedPut::new(put, result.replicas.len(), &usable);
        let accounted = written.replicas.len() + written.failed.len();
        assert_eq!(accounted, result.replicas.len(), "each replica is to be written or has failed");
        !written.replicas.is_empty()
    })
}

/// Returns the state of a client that no master has answered yet.
fn unmet() -> Option<Masters> {
    let config = Config { local_cache: ByteSize(0), ..Config::default() };
    let list = MasterList::parse(ADDRESS).ok()?;
    let counters = Arc::new(Counters::new());
    let (local, avoid) = (Arc::new(Local::new(&config)), Arc::new(AvoidList::new()));
    let mode = Arc::new(ModeSwitch::new(config.leader_timeout, counters.clone()));
    let follow = Box::new(ApplyChanges { local, avoid, counters: counters.clone(), mode });
    // Nothing is sent, so it need not be driven.
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().build().ok());
    let runtime = runtime.as_ref()?.handle().clone();
    Some(Masters::new(
        &config,
        TcpNetwork::shared(),
        list,
        Listed::of(ADDRESS, &[]),
        counters,
        follow,
        runtime,
    ))
}

/// Returns the state of a client whose master has answered a hello and named no leader.
fn met() -> Option<Masters> {
    let masters = unmet()?;
    let report = ClusterReport {
        cluster: Some(CLUSTER),
        node: Some(NODE),
        leader: None,
        masters: Vec::new(),
        tls_level: None,
    };
    masters.greeted(ADDRESS, report);
    Some(masters)
}

/// Returns whether a leader is known, after checking that every address learned from masters can be tried.
fn knows_leader(masters: &Masters) -> bool {
    for address in masters.targets() {
        assert!(!address.is_empty(), "nobody is asked who has no address");
        drop(black_box(endpoint(&address, ChannelOptions::default())));
    }
    masters.leader().is_some()
}

/// Asserts that each place names a grant of its own store: reads and writes use that grant.
fn check<'a>(places: impl Iterator<Item = &'a Place>, granted: &[Option<Granted>]) {
    for place in places {
        let from = granted.get(place.grant).and_then(Option::as_ref);
        assert_eq!(from.map(|from| from.peer.store), Some(place.store), "a place has a grant of its store");
    }
}
