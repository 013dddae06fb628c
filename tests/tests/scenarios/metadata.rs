//! The key-value table at `/metadata`.

use mc_tests::{Cluster, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a request and returns the status and the text after the head, or the address of a redirection.
async fn call(address: &str, method: &str, key: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} /metadata?key={key} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let location = head.lines().find_map(|line| line.strip_prefix("location: "));
    (status, location.unwrap_or(text).to_owned())
}

#[tokio::test]
async fn entries_survive_a_leader_and_followers_redirect_to_it() {
    let mut cluster = Cluster::builder().masters(3).stores(0).start().await;
    let leader = cluster.leader().await;
    let http = cluster.master_http(leader).to_owned();
    assert_eq!(call(&http, "GET", "mooncake%2Fram%2Fa", "").await.0, 404);
    assert_eq!(call(&http, "PUT", "mooncake%2Fram%2Fa", "{\"protocol\":\"tcp\"}").await.0, 200);
    assert_eq!(call(&http, "PUT", "", "x").await.0, 400);
    assert_eq!(call(&http, "PUT", "large", &"x".repeat(65 << 10)).await.0, 413);
    assert_eq!(call(&http, "DELETE", "nothing", "").await.0, 404);
    let follower = cluster.follower().await;
    let (status, to) = call(cluster.master_http(follower), "GET", "mooncake%2Fram%2Fa", "").await;
    assert_eq!((status, to), (307, format!("http://{http}/metadata?key=mooncake%2Fram%2Fa")));
    cluster.masters[leader].kill9();
    until("the next leader has it", async || {
        let Some(leader) = cluster.find_leader().await else { return false };
        call(cluster.master_http(leader), "GET", "mooncake%2Fram%2Fa", "").await
            == (200, "{\"protocol\":\"tcp\"}".to_owned())
    })
    .await;
    let leader = cluster.leader().await;
    assert_eq!(call(cluster.master_http(leader), "DELETE", "mooncake%2Fram%2Fa", "").await.0, 200);
    assert_eq!(call(cluster.master_http(leader), "GET", "mooncake%2Fram%2Fa", "").await.0, 404);
}
