//! Links between clients and masters that carry nothing, or badly. The masters have no reason to elect another leader.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Deadlines, Link, Links, Workload, until};

use crate::row::{Row, Who};

/// Longer than a call's first try, and than the keep-alive of a connection.
const SPELL: Duration = Duration::from_secs(3);

/// Shorter than a spell: calls reach them.
const SOON: Deadlines = Deadlines {
    put: Duration::from_millis(1_500),
    get: Duration::from_secs(1),
    call: Duration::from_secs(1),
};

/// Clients that were cut off are served again: they look for a leader, and connect.
const BACK: Service = Service::interrupted(Duration::from_millis(2_500)).once_back();

/// A row whose calls may not take long: [`Row::run`] looks at each.
pub(crate) fn row(fault: &'static str, role: &'static str, service: Service) -> Row {
    Row::new(fault, role, service).workload(Workload::new(1).pace(Duration::from_millis(2)).deadlines(SOON))
}

/// No call of a client gets to the leader and its answer back. Calls end within their deadlines, and say so.
async fn from_leader(fault: &'static str, role: &'static str, cut: impl Fn(&Links, usize)) {
    row(fault, role, BACK)
        .run_at(Who::Leader, async |round, leader| {
            cut(round.cluster.links(), leader);
            round.hit().await;
            tokio::time::sleep(SPELL).await;
            round.struck_on_links();
            round.service_is_owed();
            round.cluster.links().heal();
        })
        .await;
}

#[tokio::test]
async fn cut_off() {
    from_leader("partition", "clients from the leader, masters whole", |links, leader| {
        links.between(&[leader], &[links.clients()], Link::Silent);
    })
    .await;
}

#[tokio::test]
async fn requests_lost() {
    from_leader("one-way partition", "the leader hears no client, masters whole", |links, leader| {
        links.set(links.clients(), leader, Link::Silent);
    })
    .await;
}

/// Requests of clients are carried out, and the answers are lost.
#[tokio::test]
async fn answers_lost() {
    from_leader("one-way partition", "no client hears the leader, masters whole", |links, leader| {
        links.set(leader, links.clients(), Link::Silent);
    })
    .await;
}

#[tokio::test]
async fn reset() {
    from_leader("partition", "clients from the leader, connections reset", |links, leader| {
        links.between(&[leader], &[links.clients()], Link::Cut);
    })
    .await;
}

/// The leader's end is gone and nobody says so: what was connected hears nothing, and is reset much later.
#[tokio::test]
async fn half_open() {
    row("half-open connections", "clients to the leader, reset after 5 s", BACK)
        .run_at(Who::Leader, async |round, leader| {
            let links = round.cluster.links();
            links.between(&[leader], &[links.clients()], Link::Silent);
            round.hit().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            let open = links.open();
            links.between(&[leader], &[links.clients()], Link::Cut);
            until("connections are reset", async || links.open() < open).await;
            round.struck_on_links();
            round.service_is_owed();
            round.cluster.links().heal();
        })
        .await;
}

/// Slow, and it works: clients are served meanwhile.
pub(crate) async fn badly(row: Row, worsen: impl Fn(&Links)) {
    row.run(async |round| {
        worsen(round.cluster.links());
        round.spell(SPELL).await;
        round.all_served().await;
        round.struck_on_links();
        round.cluster.links().heal();
    })
    .await;
}

async fn badly_to_masters(fault: &'static str, link: Link) {
    let row = row(
        fault,
        "all links between clients and masters",
        Service::interrupted(Duration::from_millis(1_000)),
    );
    badly(row, |links| links.with_clients(link)).await;
}

pub(crate) const DELAY: Link =
    Link::Slow { delay: Duration::from_millis(20), jitter: Duration::from_millis(20) };

rows! {
    delay => badly_to_masters("delay 20 to 40 ms", DELAY);
    loss => badly_to_masters("loss of 5 %", Link::Lossy { one_in: 20 });
}
