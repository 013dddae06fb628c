//! The client library's examples do what they say.

use mc_client::{Code, Put};
use mc_tests::{Cluster, LossyMaster};

#[allow(dead_code, reason = "its main")]
#[path = "../../../client/examples/batches.rs"]
mod batches;
#[allow(dead_code, reason = "its main")]
#[path = "../../../client/examples/outcomes.rs"]
mod outcomes;
#[allow(dead_code, reason = "its main")]
#[path = "../../../client/examples/put_get.rs"]
mod put_get;
#[allow(dead_code, reason = "its main")]
#[path = "../../../client/examples/sessions.rs"]
mod sessions;

#[tokio::test]
async fn put_get_reads_what_it_put_and_removes_it() {
    let cluster = Cluster::builder().masters(1).start().await;
    let (put, value, size, removed) = put_get::run(&cluster.addresses()).await.unwrap();
    assert_eq!((put, &value[..]), (Put::Stored, put_get::VALUE));
    assert_eq!((size, removed), (put_get::VALUE.len() as u64, true));
    assert!(!cluster.client().await.exist(put_get::KEY).await.unwrap(), "it is gone");
}

#[tokio::test]
async fn batches_has_a_result_for_each_item_and_reads_in_place_what_it_put_from_there() {
    let cluster = Cluster::builder().masters(1).start().await;
    let (puts, hits, read) = batches::run(&cluster.addresses()).await.unwrap();
    let puts: Vec<_> = puts.into_iter().map(|put| put.map_err(|error| error.code)).collect();
    assert_eq!(puts, [Ok(Put::Stored), Ok(Put::Stored), Err(Code::InvalidKey)]);
    assert_eq!(hits, 2);
    let expected = [b'k', b'v', b'v', 0].map(|byte| vec![byte; batches::BLOCK]).concat();
    assert!(read.as_slice() == expected, "other bytes came back");
    let left = cluster.client().await.batch_exist(&batches::LAYERS).await;
    assert!(left.into_iter().all(|there| !there.unwrap()), "they are gone");
}

#[tokio::test]
async fn sessions_reads_each_layer_of_each_block_as_it_was_put() {
    let cluster = Cluster::builder().masters(1).start().await;
    let read = sessions::run(&cluster.addresses()).await.unwrap();
    let expected: Vec<[u8; 2]> = (0..sessions::LAYERS).map(|layer| [layer; 2]).collect();
    assert_eq!(read, expected);
    let left = cluster.client().await.batch_exist(&sessions::BLOCKS).await;
    assert!(left.into_iter().all(|there| !there.unwrap()), "they are gone");
}

#[tokio::test]
async fn outcomes_finds_out_what_an_unanswered_remove_did_and_goes_on_when_the_master_is_killed() {
    let mut cluster = Cluster::builder().masters(1).start().await;
    // The first reply of each call is lost, that of the remove, too.
    let proxy = LossyMaster::start(cluster.master_address(0)).await;
    let outage = async { cluster.masters[0].kill9() };
    let (refused, gone, put, cached) = outcomes::run(proxy.address(), outage).await.unwrap();
    assert_eq!((refused, gone), (Code::InvalidKey, outcomes::Gone::FoundOut));
    assert_eq!((put, &cached[..]), (Put::LocalOnly, outcomes::VALUE));
}
