//! Internal decoders, exposed for tests/fuzz. Each function returns whether its input could be read.

use mc_discovery::{ClusterReport, read_hello, read_update};
use mc_proto::v1::{HelloReply, WatchEvent};
use mc_transfer::Authority;
use mc_types::{Clock, ClusterId, ClusterTime};

use crate::data_dir::{decode, encode};

/// Decodes the body of a store's identity.
pub fn identity(body: &[u8]) -> bool {
    let Some((store, cluster)) = decode(body) else { return false };
    assert_eq!(encode(store, cluster), body, "there is one way to write an identity");
    true
}

/// Feeds the cluster id and the time of a mount's or heartbeat's reply to an [`Authority`], which expires grants by
/// them.
pub fn cluster_time(cluster: &[u8], ms: u64) -> bool {
    let Some(cluster) = ClusterId::from_bytes(cluster) else { return false };
    let authority = Authority::new(Clock::monotonic());
    for time in [ClusterTime(ms), ClusterTime(0)] {
        authority.learn(cluster, time);
        let known = authority.now();
        assert!(known.is_some_and(|(of, now)| of == cluster && now.0 >= ms), "time goes back: {known:?}");
    }
    true
}

/// Reads a master's answer to a hello; returns whether it names a leader of a cluster.
pub fn hello(reply: &HelloReply) -> bool {
    read_hello(reply.clone()).is_ok_and(|said| names_leader(&said))
}

/// Reads an event of a watch; returns whether it names a leader of a cluster.
pub fn watch(event: &WatchEvent) -> bool {
    names_leader(&read_update(event.clone()).report)
}

fn names_leader(report: &ClusterReport) -> bool {
    let leader = report.leader.as_ref();
    assert!(leader.is_none_or(|leader| !leader.address.is_empty()), "a leader can be asked");
    report.cluster.is_some() && leader.is_some()
}
