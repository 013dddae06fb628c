//! The key-value table at `/metadata`, as Mooncake's transfer engine asks for it: without following redirections.

use mc_tests::{Cluster, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a request with more head lines, and returns the status and the text after the head.
async fn call_with(address: &str, method: &str, key: &str, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} /metadata{key} HTTP/1.1\r\nhost: {address}\r\n{head}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, text.to_owned())
}

async fn call(address: &str, method: &str, key: &str, body: &str) -> (u16, String) {
    call_with(address, method, &format!("?key={key}"), "", body).await
}

#[tokio::test]
async fn every_master_answers_for_the_leader_and_entries_survive_it() {
    let mut cluster = Cluster::builder().masters(3).stores(0).start().await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    for master in [leader, follower] {
        let http = cluster.master_http(master);
        assert_eq!(call(http, "GET", "mooncake%2Fram%2Fa", "").await.0, 404);
        assert_eq!(call(http, "PUT", "mooncake%2Fram%2Fa", "{\"protocol\":\"tcp\"}").await.0, 200);
        let found = (200, "{\"protocol\":\"tcp\"}".to_owned());
        assert_eq!(call(cluster.master_http(leader), "GET", "mooncake%2Fram%2Fa", "").await, found);
        assert_eq!(call(cluster.master_http(follower), "GET", "mooncake%2Fram%2Fa", "").await, found);
        assert_eq!(call(http, "DELETE", "mooncake%2Fram%2Fa", "").await, (200, "metadata deleted\n".into()));
        assert_eq!(call(http, "DELETE", "mooncake%2Fram%2Fa", "").await.0, 404);
        assert_eq!(call_with(http, "GET", "", "", "").await.0, 400);
        assert_eq!(call(http, "PUT", "", "x").await.0, 400);
        assert_eq!(call(http, "PUT", &"k".repeat(1_025), "x").await.0, 400);
        assert_eq!(call(http, "PUT", "large", &"x".repeat(65 << 10)).await.0, 413);
        assert_eq!(call(http, "HEAD", "a", "").await, (404, String::new()));
        assert_eq!(call(http, "POST", "a", "x").await.0, 405);
    }
    // A request that has been passed on once goes no further.
    let (status, why) =
        call_with(cluster.master_http(follower), "GET", "?key=a", "mc-forwarded: 1\r\n", "").await;
    assert_eq!(status, 421, "{why}");

    let http = cluster.master_http(leader);
    assert_eq!(call(http, "PUT", "mooncake%2Fram%2Fa", "{\"protocol\":\"tcp\"}").await.0, 200);
    cluster.masters[leader].kill9();
    // Each request, sent once, finds the next leader.
    let http = cluster.master_http(follower);
    let (put, got) =
        tokio::join!(call(http, "PUT", "b", "after"), call(http, "GET", "mooncake%2Fram%2Fa", ""));
    assert_eq!(put, (200, "metadata updated\n".to_owned()));
    assert_eq!(got, (200, "{\"protocol\":\"tcp\"}".to_owned()));
    assert_eq!(call(http, "GET", "b", "").await, (200, "after".to_owned()));
    let leader = cluster.leader().await;
    assert_eq!(call(cluster.master_http(leader), "DELETE", "mooncake%2Fram%2Fa", "").await.0, 200);
    for master in (0..3).filter(|master| *master != follower) {
        if cluster.masters[master].is_running() {
            cluster.masters[master].kill9();
        }
    }
    until("a master without a majority says so", async || {
        let (status, why) = call(cluster.master_http(follower), "GET", "a", "").await;
        status == 503 && why.contains("no leader is known")
    })
    .await;
}

#[tokio::test]
async fn the_address_of_an_engine_goes_to_the_first_one_until_it_is_deleted() {
    let cluster = Cluster::builder().masters(3).stores(0).start().await;
    let key = "mooncake%2Frpc_meta%2Fhost%3A12345";
    // Through each master, all at once.
    let puts = (0..30).map(async |n| {
        let value = format!("{{\"rpc_port\":{n}}}");
        (call(cluster.master_http(n % 3), "PUT", key, &value).await, value)
    });
    let answers = futures::future::join_all(puts).await;
    let (first, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|((status, _), _)| *status == 200);
    let [((_, text), value)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(text, "metadata updated\n");
    for (answer, _) in &others {
        assert_eq!(*answer, (400, "Duplicate rpc_meta key not allowed\n".to_owned()));
    }
    let http = cluster.master_http(0);
    assert_eq!(call(http, "GET", key, "").await, (200, value.clone()));
    assert_eq!(call(http, "PUT", key, value).await, (200, "metadata unchanged\n".to_owned()));
    assert_eq!(call(http, "DELETE", key, "").await.0, 200);
    assert_eq!(call(http, "PUT", key, "other").await, (200, "metadata updated\n".to_owned()));
}
