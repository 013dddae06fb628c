//! Decodes answers of masters as a client does, for tests/fuzz: each function says whether it can be used.

use std::hint::black_box;

use bytes::Bytes;
use mc_discovery::Listed;
use mc_net::{ChannelOptions, endpoint};
use mc_proto::{
    VERSIONS, detail_of, status_of,
    v1::{BatchGetReply, BatchPutStartReply, ErrorDetail, HelloReply, WatchEvent},
};
use mc_types::{ByteSize, ClusterId, Code, NodeId};
use tokio::time::Instant;

use crate::admin::Lookup;
use crate::call::failure_of;
use crate::discover::store_states;
use crate::leader::LeaderAt;
use crate::list::MasterList;
use crate::masters::{Link, Masters};
use crate::placement::{Granted, Place, described, grants, lease_end, places};
use crate::round::{Pending, Round, Written};
use crate::{Builder, PutFrom};

/// The cluster of the masters that were met.
const CLUSTER: ClusterId = ClusterId(7);
/// The only master of the list, and its id.
const ADDRESS: &str = "a:50051";
const NODE: NodeId = NodeId(1);

/// A master's answer to a hello: whether it leads to a leader.
pub fn hello(reply: &HelloReply) -> bool {
    let Some(masters) = unmet() else { return false };
    masters.greeted(ADDRESS, reply);
    knows_leader(&masters)
}

/// News from a master that is watched: whether they lead to a leader.
pub fn watch(event: &WatchEvent) -> bool {
    let Some(masters) = met() else { return false };
    masters.watched(ADDRESS, event);
    assert!(store_states(event).len() <= event.stores.len(), "each store is judged once");
    knows_leader(&masters)
}

/// Why a master refused a call: whether it leads to another leader.
pub fn refusal(detail: &ErrorDetail) -> bool {
    let status = status_of(detail);
    black_box(failure_of(&status));
    let Some(detail) = detail_of(&status) else { return false };
    let Some(masters) = met() else { return false };
    let from = LeaderAt { node: NODE, address: ADDRESS.to_owned(), term: 1 };
    masters.foreign(&from, &detail.theirs, Instant::now());
    masters.redirected(&from, detail.leader.as_ref());
    knows_leader(&masters)
}

/// Where objects lie: whether each that there is has a place.
pub fn get(reply: &BatchGetReply) -> bool {
    let sent_at = Instant::now();
    assert!(lease_end(sent_at, reply.lease_ms) >= sent_at, "a lease does not end before it began");
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

/// Where objects may be written: whether each that was started has a place.
pub fn put_start(reply: &BatchPutStartReply) -> bool {
    let item = PutFrom { key: b"key", slices: &[b"value"] };
    let granted = grants(CLUSTER, reply.grants.clone(), Instant::now());
    reply.results.iter().all(|result| {
        let Ok(put) = Pending::new(0, Bytes::from_static(b"key"), &item) else { return false };
        if result.code != Code::Ok as i32 {
            black_box(Round::not_started(put, result.code, true));
            return true;
        }
        let usable: Vec<_> = places(&result.replicas, &granted, put.size).collect();
        check(usable.iter().map(|(_, place)| place), &granted);
        let written = Written::new(put, result.replicas.len(), &usable);
        let accounted = written.replicas.len() + written.failed.len();
        assert_eq!(accounted, result.replicas.len(), "each replica is to be written or has failed");
        !written.replicas.is_empty()
    })
}

/// A client that has heard of nobody yet.
fn unmet() -> Option<Masters> {
    let builder = Builder::default().local_cache(ByteSize(0));
    let list = MasterList::parse(ADDRESS).ok()?;
    Some(Masters::new(&builder, list, Listed::of(ADDRESS, &[])))
}

/// A client that has met its master, which knows no leader.
fn met() -> Option<Masters> {
    let masters = unmet()?;
    masters.greeted(
        ADDRESS,
        &HelloReply {
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            cluster_id: Bytes::copy_from_slice(&CLUSTER.to_bytes()),
            node_id: Bytes::copy_from_slice(&NODE.to_bytes()),
            ..HelloReply::default()
        },
    );
    Some(masters)
}

/// Whatever masters named is asked next, so it must be possible to try.
fn knows_leader(masters: &Masters) -> bool {
    for address in masters.targets() {
        assert!(!address.is_empty(), "nobody is asked who has no address");
        drop(black_box(endpoint(&address, ChannelOptions::default())));
    }
    matches!(masters.link(), Link::Leader(_))
}

/// Reads and writes take the grant that a place names.
fn check<'a>(places: impl Iterator<Item = &'a Place>, granted: &[Option<Granted>]) {
    for place in places {
        let from = granted.get(place.grant).and_then(Option::as_ref);
        assert_eq!(from.map(|from| from.peer.store), Some(place.store), "a place has a grant of its store");
    }
}
