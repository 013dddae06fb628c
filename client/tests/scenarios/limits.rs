//! Messages that are larger than who reads them takes.

use mc_client::Code;

use crate::support::{Cluster, On, STORE_A};

/// Most bytes that a client reads of an answer.
const ANSWER_BYTES: usize = 16 << 20;
/// Less than a replica with large numbers takes in one.
const REPLICA_BYTES: usize = 45;

#[tokio::test]
async fn an_answer_above_the_limit_is_an_error_of_its_own_call() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("small", b"value").await.unwrap();
    client.put("large", b"value").await.unwrap();
    if let Some(object) = cluster.world.lock().objects.get_mut(&b"large"[..]) {
        object.size = u64::MAX;
        object.replicas = vec![(STORE_A, u64::MAX); ANSWER_BYTES / REPLICA_BYTES];
    }

    let error = client.get("large").await.unwrap_err();
    assert_eq!(error.code, Code::InvalidParams, "{error}");
    assert!(error.why.contains(&format!("the limit is: {ANSWER_BYTES} bytes")), "{error}");
    assert_eq!(client.get("small").await.unwrap().unwrap(), b"value"[..]);
}

#[tokio::test]
async fn long_keys_cut_reads_and_removes_by_their_bytes() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let keys: Vec<String> = (0..600).map(|i| format!("{i:04096}")).collect();
    assert!(client.batch_exist(&keys).await.into_iter().all(|there| !there.unwrap()));
    assert!(client.batch_get(&keys).await.into_iter().all(|value| value.unwrap().is_none()));
    assert!(client.batch_remove(&keys, false).await.into_iter().all(|gone| !gone.unwrap()));
    let world = cluster.world.lock();
    for asked in [On::Exist, On::Get, On::Remove] {
        let calls = world.calls.iter().filter(|(on, _)| *on == asked).map(|(_, items)| *items);
        let items: Vec<usize> = calls.collect();
        assert_eq!(items.iter().sum::<usize>(), keys.len(), "{asked:?}");
        assert!(items.iter().all(|items| items * 4096 < 1 << 20), "{asked:?}: {items:?}");
    }
}
