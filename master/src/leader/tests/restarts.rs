//! Stores that mount memory which has outlived their last process.

use mc_index::{MountStore, RESTARTS_SINCE, Request};
use mc_types::{Code, GrantKey, STORE_INCARNATION, SegmentEpoch, StoreId};
use tokio_util::sync::CancellationToken;

use super::mount;
use super::upgrade::lone_leader;
use crate::leader::{Refusal, Services};

/// A mount of the same memory by the first, the second, ... process of a store at an address.
fn by(process: u8, address: &str) -> MountStore {
    let mut mount = mount(1, &[address], &[1 << 20]);
    mount.grant_key = GrantKey([process; 32]);
    mount.endpoints[0].attributes.push((STORE_INCARNATION.to_owned(), process.to_string()));
    mount
}

async fn set_version(leader: &Services, version: u32) {
    let leading = leader.coordinator.lead().await.unwrap();
    leader.coordinator.propose(&leading, &Request::set_cluster_version(version)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_an_earlier_process_is_mounted_once_the_cluster_can_tell_the_two_apart() {
    let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
    set_version(&leader, RESTARTS_SINCE - 1).await;
    let first = leader.stores.mount(by(1, "a:1")).await.unwrap();
    let Err(Refusal::Store { code, message }) = leader.stores.mount(by(2, "a:1")).await else {
        panic!("it was mounted")
    };
    assert_eq!(code, Code::StoreEpochDead);
    assert!(message.contains("upgrade finish"), "{message}");

    set_version(&leader, RESTARTS_SINCE).await;
    let second = leader.stores.mount(by(2, "a:2")).await.unwrap();
    assert!(second.order > first.order);
    let key =
        || leader.coordinator.read(|applied| applied.state.store(StoreId(1)).map(|store| *store.grant_key));
    assert_eq!(key(), Some(GrantKey([2; 32])));
    assert!(leader.stores.mount(by(1, "a:1")).await.is_err(), "a mount that arrives late");
    assert_eq!(key(), Some(GrantKey([2; 32])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_store_that_gives_its_memory_up_is_not_taken_for_a_copy_of_itself() {
    let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
    set_version(&leader, RESTARTS_SINCE).await;
    leader.stores.mount(by(2, "a:1")).await.unwrap();
    let with_new_epoch = |address| MountStore { epoch: SegmentEpoch(7), ..mount(1, &[address], &[1 << 20]) };
    let Err(Refusal::Store { code, .. }) = leader.stores.mount(with_new_epoch("b:1")).await else {
        panic!("two stores of one id are mounted in turns")
    };
    assert_eq!(code, Code::SegmentAlreadyExists);
    leader.stores.mount(with_new_epoch("a:1")).await.unwrap();
}
