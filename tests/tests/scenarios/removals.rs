//! Removal of many objects: all of a tenant, and by pattern.

use mc_client::{Client, Code, PinAction, Presence, Put, PutMode, PutOptions};
use mc_tests::{Cluster, until};

async fn put_all(client: &Client, prefix: &str, count: usize, options: &PutOptions) {
    let items: Vec<_> = (0..count).map(|n| (format!("{prefix}-{n}"), format!("value of {n}"))).collect();
    for put in client.batch_put(&items, options).await {
        assert_eq!(put.unwrap(), Put::Stored);
    }
}

async fn count(client: &Client) -> usize {
    let (mut keys, mut from) = (0, None);
    loop {
        let page = client.list_keys("", from, 4096).await.unwrap();
        keys += page.keys.len();
        from = page.next;
        if from.is_none() {
            return keys;
        }
    }
}

#[tokio::test]
async fn patterns_remove_what_matches_of_one_tenant_and_spare_what_is_read() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let client = cluster.client().await;
    let other = cluster.client_builder().tenant("other").connect().await.unwrap();
    put_all(&client, "a", 3000, &PutOptions::default()).await;
    put_all(&client, "b", 3000, &PutOptions::default().with_pin(PinAction::Hard)).await;
    put_all(&other, "a", 10, &PutOptions::default()).await;
    assert!(client.exist("a-7").await.unwrap(), "and is leased now");

    let removed = client.remove_by_regex("^a-[0-9]+$", false).await.unwrap();
    assert_eq!((removed.objects, removed.leased), (2999, 1));
    assert_eq!((count(&client).await, count(&other).await), (3001, 10));
    assert_eq!(client.peek("a-7").await.unwrap(), Presence::Present("value of 7".len() as u64));
    let removed = client.remove_by_regex("a", true).await.unwrap();
    assert_eq!((removed.objects, removed.leased), (1, 0));
    // Unanchored, and pinned objects go, too.
    assert_eq!(client.remove_by_regex("b-.*9", false).await.unwrap().objects, 813);
    for bad in ["(", "(a{1000}){1000}", &"a".repeat(5000)] {
        let refused = client.remove_by_regex(bad, false).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidParams, "{refused}");
    }
    assert_eq!(client.remove_by_regex("", false).await.unwrap_err().code, Code::InvalidParams);
    // A pattern that backtracking engines choke on takes its time without holding others up.
    assert_eq!(client.remove_by_regex("^(.+)+c$", false).await.unwrap().objects, 0);
    assert_eq!(client.remove_all(false).await.unwrap().objects, 2187);
    assert_eq!((count(&client).await, count(&other).await), (0, 10));
}

#[tokio::test]
async fn all_objects_of_a_tenant_go_at_once_and_their_bytes_come_back_through_a_leader_kill() {
    let mut cluster = Cluster::builder().masters(3).stores(1).segment("64mb").start().await;
    let client = cluster.client().await;
    let other = cluster.client_builder().tenant("other").connect().await.unwrap();
    put_all(&client, "a", 5000, &PutOptions::default()).await;
    put_all(&other, "a", 10, &PutOptions::default()).await;
    assert!(client.exist("a-7").await.unwrap(), "and is leased now");
    assert_eq!(client.remove_all(true).await.unwrap().objects, 5000);
    assert_eq!((count(&client).await, count(&other).await), (0, 10));
    assert_eq!(client.get("a-7").await.unwrap(), None);
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    assert_eq!(client.put("a-7", b"again").await.unwrap(), Put::Stored);
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    assert_eq!(client.put_with("a-8", b"upserted", &upsert).await.unwrap(), Put::Stored);
    assert_eq!(client.get("a-7").await.unwrap().as_deref(), Some(&b"again"[..]));
    cluster.masters[leader].start();
    cluster.ready().await;
    let leader = cluster.leader().await;
    until("only what was put since takes up bytes", async || {
        let status = cluster.status(leader).await;
        status.is_some_and(|status| status.keys == 12)
    })
    .await;
    assert_eq!((count(&client).await, count(&other).await), (2, 10));
    assert_eq!(client.remove_all(true).await.unwrap().objects, 2);
}
