//! Links of the only store that carry nothing, or badly: from clients to it, and from it to the masters.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Link, Links, until};

use crate::clients;
use crate::row::Row;

/// Longer than the calls may take, and than a store may be silent.
const SPELL: Duration = Duration::from_secs(3);

fn row(fault: &'static str, role: &'static str, service: Service) -> Row {
    clients::row(fault, role, service).cluster(|cluster| cluster.store_links())
}

/// The store looks for the leader, and registers.
const HEARD: Service = Service::interrupted(Duration::from_millis(2_500))
    .failed(200, "store not heard yet")
    .false_misses(100, "store not heard yet");

/// Clients do not reach the store, and the masters hear that it lives: calls fail in time, or miss.
async fn from_clients(fault: &'static str, role: &'static str, cut: impl Fn(&Links)) {
    row(fault, role, Service::unaffected())
        .run(async |round| {
            let since = round.running.recorder().now();
            cut(round.cluster.links());
            tokio::time::sleep(SPELL).await;
            round.struck_on_links();
            round.service_is_owed();
            round.cluster.links().heal();
            round.unreachable_since(since);
        })
        .await;
}

#[tokio::test]
async fn cut_off_from_clients() {
    from_clients("partition", "clients from the only store", |links| {
        links.between(&[links.clients()], &[links.stores()], Link::Silent);
    })
    .await;
}

#[tokio::test]
async fn reset_for_clients() {
    from_clients("partition", "clients from the only store, connections reset", |links| {
        links.between(&[links.clients()], &[links.stores()], Link::Cut);
    })
    .await;
}

/// The store takes what it is asked for, and no client hears of it.
#[tokio::test]
async fn answers_lost() {
    from_clients("one-way partition", "no client hears the only store", |links| {
        links.set(links.stores(), links.clients(), Link::Silent);
    })
    .await;
}

async fn badly(fault: &'static str, link: Link) {
    let worsen = |links: &Links| links.between(&[links.clients()], &[links.stores()], link);
    let service = Service::interrupted(Duration::from_millis(1_000));
    clients::badly(row(fault, "all links between clients and the store", service), worsen).await;
}

rows! {
    delay_for_clients => badly("delay 20 to 40 ms", clients::DELAY);
    narrow_for_clients => badly("bandwidth 1 MiB/s", Link::Narrow { bytes_per_second: 1 << 20 });
}

/// The masters do not hear the store, which clients still reach: no put is placed there, and what it holds is there again
/// when it is heard.
async fn from_masters(fault: &'static str, role: &'static str, link: Link) {
    row(fault, role, HEARD)
        .run(async |round| {
            let links = round.cluster.links();
            links.between(&[links.stores()], &links.masters(), link);
            until("the leader suspects the store", async || round.is_a_store_suspect().await).await;
            tokio::time::sleep(SPELL).await;
            round.struck_on_links();
            round.service_is_owed();
            round.cluster.links().heal();
        })
        .await;
}

rows! {
    cut_off_from_masters => from_masters("partition", "the only store from all masters", Link::Silent);
    reset_for_masters => from_masters("partition", "the only store from all masters, connections reset", Link::Cut);
}
