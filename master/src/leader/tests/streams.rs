//! Heartbeat streams that end.

use mc_types::{SegmentEpoch, StoreId};
use tokio_util::sync::CancellationToken;

use super::mount;
use super::upgrade::lone_leader;

/// Objects of a suspect store can't be read, which a client takes for a miss.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_because_the_leader_stops_makes_no_store_suspect() {
    let stop = CancellationToken::new();
    let (leader, _cluster) = lone_leader(stop.clone()).await;
    let leading = leader.coordinator.lead().await.unwrap();
    for id in [1, 2] {
        leader.stores.mount(mount(id, &[], &[1 << 20])).await.unwrap();
    }
    let mut sessions = [leader.stores.session(), leader.stores.session()];
    for (id, session) in (1..).zip(&mut sessions) {
        assert!(session.beat(StoreId(id), SegmentEpoch(id), Vec::new(), None).await.unwrap().mounted);
    }

    let [broken, ended] = sessions;
    drop(broken);
    assert!(leading.is_suspect(StoreId(1)), "its stream broke");
    stop.cancel();
    drop(ended);
    assert!(!leading.is_suspect(StoreId(2)), "this master ended its stream");
}
