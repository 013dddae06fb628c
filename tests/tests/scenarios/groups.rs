//! Groups: the pools of a page live and die together.

use std::time::Duration;

use mc_client::{Client, DescribedGroup, Presence, Put, PutFrom, PutOptions, Replication};
use mc_tests::{Cluster, until, value};

const PART: usize = 512 << 10;
const PARTS: [&str; 3] = ["kv", "index", "state"];

fn key(page: usize, part: &str) -> String {
    format!("page-{page}/{part}")
}

fn part(page: usize, part: &str) -> Vec<u8> {
    value(&key(page, part), 1, PART)
}

/// Puts the parts of a page in one call.
async fn put_page(client: &Client, page: usize, options: &PutOptions) {
    let group = format!("page-{page}");
    let keys: Vec<_> = PARTS.iter().map(|it| key(page, it)).collect();
    let values: Vec<_> = PARTS.iter().map(|it| part(page, it)).collect();
    let slices: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value[..]]).collect();
    let items: Vec<_> = keys
        .iter()
        .zip(&slices)
        .map(|(key, slices)| PutFrom::new(key.as_bytes(), slices).with_group(group.as_bytes()))
        .collect();
    for put in client.batch_put_from(&items, options).await {
        assert_eq!(put.unwrap(), Put::Stored, "page {page}");
    }
}

/// Returns how many parts of a page there are.
async fn parts(client: &Client, page: usize) -> usize {
    let keys: Vec<_> = PARTS.iter().map(|part| key(page, part)).collect();
    let found = client.batch_peek(&keys).await;
    found.into_iter().filter(|found| matches!(found, Ok(Presence::Present(_)))).count()
}

fn options() -> PutOptions {
    PutOptions::default().with_deadline(Duration::from_secs(10))
}

#[tokio::test]
async fn a_page_is_evicted_as_a_whole_through_leader_kills() {
    // The pages after the last kill fill the pool once more.
    const PAGES: usize = 110;
    const KILLS: [usize; 2] = [29, 59];
    let mut cluster = Cluster::builder().masters(3).stores(2).segment("24mb").start().await;
    let client = cluster.client().await;
    for page in 0..PAGES {
        if KILLS.contains(&page) {
            let leader = cluster.leader().await;
            cluster.masters[leader].kill9();
            put_page(&client, page, &options()).await;
            cluster.masters[leader].start();
        } else {
            put_page(&client, page, &options()).await;
        }
        // One page goes on being used, by one of its parts alone. Right after a failover its store may be suspect.
        let used = async || client.presence(key(0, PARTS[page % 3])).await.unwrap();
        until("it is known whether page 0 is left", async || used().await != Presence::Unavailable).await;
        if !used().await.is_there() {
            // Uses are noted in the log once a second: a leader that is killed before takes them along.
            assert!(KILLS.contains(&page), "page 0 is used, and was evicted when page {page} was put");
            put_page(&client, 0, &options()).await;
        }
    }
    let mut whole = 0;
    for page in 0..PAGES {
        let there = parts(&client, page).await;
        assert!(there == 0 || there == PARTS.len(), "{there} parts of page {page} are left");
        whole += usize::from(there > 0);
    }
    assert!((20..=32).contains(&whole), "{whole} pages are left");
    assert!(
        whole < PAGES - KILLS[1],
        "all that was put since the last kill is left: page 0 was never at risk"
    );
    assert_eq!(parts(&client, 0).await, PARTS.len(), "a page that is used was evicted");
    for it in PARTS {
        assert_eq!(client.get(key(0, it)).await.unwrap().as_deref(), Some(&part(0, it)[..]));
    }
}

#[tokio::test]
async fn a_group_that_lost_a_member_with_its_store_says_so() {
    let store_ttl = ["--store-ttl", "5s"];
    let mut cluster =
        Cluster::builder().masters(1).stores(2).segment("24mb").master_args(store_ttl).start().await;
    let client = cluster.client().await;
    let names: Vec<_> = [cluster.store_address(0), cluster.store_address(1)].map(str::to_owned).into();
    let status = client.admin().status().await;
    let stores = &status.masters[0].status.as_ref().unwrap().stores;
    let name_of = |address: &str| {
        let lies_there = |store: &&mc_client::StoreStatus| store.endpoints[0].address == address;
        stores.iter().find(lies_there).expect("the store is mounted").name.clone()
    };
    for (n, address) in names.iter().enumerate() {
        let options = options()
            .with_preferred_names(["no such store".to_owned(), name_of(address)])
            .with_group("page")
            .with_data_type(7);
        assert_eq!(
            client.put_with(format!("part-{n}"), &part(0, "kv"), &options).await.unwrap(),
            Put::Stored
        );
        let described = client.describe(format!("part-{n}")).await.unwrap().unwrap();
        assert_eq!((described.replicas[0].address.as_str(), described.data_type), (address.as_str(), 7));
    }
    let group = async || client.describe("part-0").await.unwrap().unwrap().group.unwrap();
    let whole = group().await;
    assert_eq!((whole.members, whole.lost, whole.joining), (2, 0, 0));

    // All replicas or none: there are two stores.
    let strict = options().with_replicas(3).with_replication(Replication::Strict);
    let refused = client.put_with("three", &part(0, "kv"), &strict).await.unwrap_err();
    assert_eq!(refused.code, mc_client::Code::NoAvailableHandle);
    assert!(refused.why.contains("fewer stores"), "{refused}");
    assert_eq!(group().await.members, 2, "a put that cannot succeed evicts nothing");
    let strict = strict.with_replicas(2);
    assert_eq!(client.put_with("two", &part(0, "kv"), &strict).await.unwrap(), Put::Stored);
    assert_eq!(client.describe("two").await.unwrap().unwrap().replicas.len(), 2);
    let dropped = client.batch_drop_replicas(&["two", "nothing"], &name_of(&names[1])).await;
    assert_eq!(dropped.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [true, false]);
    let left = client.describe("two").await.unwrap().unwrap().replicas;
    assert_eq!((left.len(), left[0].address.as_str()), (1, names[0].as_str()));

    cluster.stores[1].kill9();
    until("the group is incomplete", async || {
        let DescribedGroup { members, lost, .. } = group().await;
        (members, lost) == (1, 1)
    })
    .await;
    // Put again elsewhere, it is whole.
    let again = options().with_group("page");
    assert_eq!(client.put_with("part-1", &part(0, "kv"), &again).await.unwrap(), Put::Stored);
    let whole = group().await;
    assert_eq!((whole.members, whole.lost), (2, 0));
}
