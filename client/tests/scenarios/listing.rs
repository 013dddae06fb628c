//! Listing as a stream: lazy, whole, and over at the first error.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use mc_client::{ByteSize, Client, Code, Error, ListedKey};
use tokio::time::timeout;

use crate::support::{Cluster, Fault, On, PATIENCE};

/// Returns a cluster with objects `a0` to `a9` and `b0` to `b9`, and three objects a page.
async fn twenty_objects() -> (Cluster, Client) {
    let cluster = Cluster::start(1);
    let client = cluster.builder().call_timeout(Duration::from_secs(1)).connect().await.unwrap();
    let keys = ["a", "b"].iter().flat_map(|prefix| (0..10).map(move |n| format!("{prefix}{n}")));
    let items: Vec<_> = keys.map(|key| (key, b"value")).collect();
    let put = client.batch_put(&items, &Default::default()).await;
    assert!(put.iter().all(Result::is_ok));
    cluster.world.lock().page = 3;
    (cluster, client)
}

#[tokio::test]
async fn a_listing_has_all_objects_and_asks_for_a_page_when_the_one_before_is_used_up() {
    let (cluster, client) = twenty_objects().await;
    let pages = || cluster.world.lock().count(On::List);
    let mut objects = client.list("a");
    assert_eq!(pages(), 0, "nobody asks for objects yet");
    for n in 0..10 {
        let object = objects.try_next().await.unwrap().unwrap();
        assert_eq!((object.key, object.size), (format!("a{n}").into(), ByteSize(5)));
        assert_eq!(pages(), n / 3 + 1);
    }
    assert_eq!(objects.try_next().await.unwrap(), None);
    assert_eq!(pages(), 7, "empty pages follow");
    assert_eq!(client.list("").count().await, 20);
    assert_eq!(client.list("c").count().await, 0);
}

#[tokio::test]
async fn an_error_comes_after_the_objects_of_the_pages_before_and_ends_the_listing() {
    let (cluster, client) = twenty_objects().await;
    let answer = Fault::Answer(Code::InvalidParams);
    // The page without an answer ends at its own deadline.
    for (fault, code) in [(answer, Code::InvalidParams), (Fault::Swallow, Code::RpcTimeout)] {
        let mut objects = client.list("a");
        assert_eq!(objects.try_next().await.unwrap().unwrap().key, "a0");
        cluster.fault(On::List, fault);
        let rest = timeout(PATIENCE, objects.collect::<Vec<_>>()).await.expect("the error ends the stream");
        let keys = |object: &Result<ListedKey, Error>| object.as_ref().ok().map(|object| object.key.clone());
        let keys: Vec<_> = rest.iter().map(keys).collect();
        assert_eq!(keys, [Some("a1".into()), Some("a2".into()), None]);
        assert_eq!(rest[2].as_ref().unwrap_err().code, code);
    }
}
