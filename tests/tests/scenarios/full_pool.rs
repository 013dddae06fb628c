//! A pool that is full all its life, shared by tenants, through failures: the promises together.

use std::collections::BTreeMap;
use std::time::Duration;

use mc_client::{ByteSize, Client, PinAction, Presence, Put, PutFrom, PutMode, PutOptions, Quota};
use mc_tests::{Cluster, Faults, Seeded, until, value};

const MIB: u64 = 1 << 20;
const PART: usize = 256 << 10;
const PARTS: [&str; 2] = ["kv", "index"];
/// Pages of conversations, some of which grow again and again.
const PAGES: usize = 420;

fn key(page: usize, part: &str) -> String {
    format!("page-{page}/{part}")
}

fn bytes(tenant: &str, page: usize, part: &str) -> Vec<u8> {
    value(&format!("{tenant}/{}", key(page, part)), 1, PART)
}

fn options() -> PutOptions {
    PutOptions::default().with_deadline(Duration::from_secs(10))
}

async fn put_page(client: &Client, tenant: &str, page: usize, options: &PutOptions) {
    let group = format!("page-{page}");
    let keys: Vec<_> = PARTS.iter().map(|part| key(page, part)).collect();
    let values: Vec<_> = PARTS.iter().map(|part| bytes(tenant, page, part)).collect();
    let slices: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value[..]]).collect();
    let item = |(key, slices)| {
        let key: &String = key;
        let slices: &[&[u8]; 1] = slices;
        PutFrom::new(key.as_bytes(), slices).with_group(group.as_bytes())
    };
    let items: Vec<_> = keys.iter().zip(&slices).map(item).collect();
    for put in client.batch_put_from(&items, options).await {
        assert!(matches!(put, Ok(Put::Stored | Put::AlreadyExists)), "page {page} of {tenant}: {put:?}");
    }
}

/// Returns the parts of a page that are there, after comparing their bytes.
async fn read_page(client: &Client, tenant: &str, page: usize) -> usize {
    let mut there = 0;
    for part in PARTS {
        if let Some(found) = client.get(key(page, part)).await.unwrap() {
            assert_eq!(found, bytes(tenant, page, part), "page {page} of {tenant}");
            there += 1;
        }
    }
    there
}

#[tokio::test]
async fn a_pool_filled_three_times_over_keeps_its_promises_through_kills_and_a_restart() {
    let mut cluster = Cluster::builder().masters(3).stores(2).segment("40mb").start().await;
    let admin = mc_client::Admin::connect(&cluster.addresses()).await.unwrap();
    let quota = 12 * MIB;
    admin.set_tenant("bound", Quota::default().with_bytes(ByteSize(quota))).await.unwrap();
    let tenant = async |name: &str| {
        let builder = cluster.client_builder().tenant(name).local_cache(ByteSize(0));
        builder.connect().await.expect("the settings are right")
    };
    let (free, bound) = (tenant("").await, tenant("bound").await);
    let pinned = options().with_pin(PinAction::Hard);
    for page in 0..6 {
        put_page(&free, "", 1000 + page, &pinned).await;
    }
    let mut faults = Faults::new();
    let killed_once = faults.plan("the leader is killed");
    let killed_again = faults.plan("the next leader is killed");
    let restarted = faults.plan("a follower is restarted from its disk");
    let mut random = Seeded::new(7);
    let mut last_use: BTreeMap<usize, usize> = BTreeMap::new();
    for turn in 0..PAGES {
        match turn {
            120 | 260 => {
                let leader = cluster.leader().await;
                cluster.masters[leader].kill9();
                if turn == 120 { killed_once.happened() } else { killed_again.happened() }
            }
            180 => {
                let follower = cluster.follower().await;
                cluster.masters[follower].kill9();
                cluster.masters[follower].start();
                restarted.happened();
            }
            160 | 300 => {
                for master in &mut cluster.masters {
                    if !master.is_running() {
                        master.start();
                    }
                }
            }
            _ => {}
        }
        put_page(&free, "", turn, &options()).await;
        if turn % 3 == 0 {
            put_page(&bound, "bound", turn, &options()).await;
        }
        // An old page is read again, as a conversation goes on.
        let again = random.below(turn as u64 + 1) as usize;
        if turn % 4 == 0 && read_page(&free, "", again).await > 0 {
            last_use.insert(again, turn);
        }
    }
    cluster.ready().await;
    let tenants = admin.tenants().await.unwrap();
    let it = tenants.iter().find(|tenant| tenant.name == "bound").expect("it is registered");
    assert!(it.bytes.0 + it.bytes_in_flight.0 <= quota, "{it:?}");
    assert!(it.bytes.0 >= quota / 2, "{it:?}");
    // Nothing is wrong, and no page is half there. Right after the failover a store may be suspect for a moment.
    until("all stores are heard", async || {
        let found = free.batch_peek(&[key(1000, PARTS[0]), key(1005, PARTS[1])]).await;
        found.iter().all(|found| matches!(found, Ok(Presence::Present(_))))
    })
    .await;
    let mut whole = 0;
    for (client, name) in [(&free, ""), (&bound, "bound")] {
        for page in 0..PAGES {
            let there = read_page(client, name, page).await;
            assert!(there == 0 || there == PARTS.len(), "{there} parts of page {page} of `{name}` are left");
            whole += usize::from(there > 0);
        }
    }
    for page in 0..6 {
        assert_eq!(read_page(&free, "", 1000 + page).await, PARTS.len(), "a pinned page was evicted");
    }
    let room = (2 * 40 * MIB) as usize / (PARTS.len() * PART);
    assert!((room * 7 / 10..=room).contains(&(whole + 6)), "{whole} pages of {room} are left");
    // The pool goes on.
    let upsert = options().with_mode(PutMode::Upsert);
    put_page(&free, "", 0, &upsert).await;
    assert_eq!(read_page(&free, "", 0).await, PARTS.len());
}
