use std::time::Duration;

use mc_client::{Code, Put};
use mc_tests::{Cluster, http_get, until};

#[tokio::test]
async fn a_reserve_that_the_disk_does_not_have_refuses_puts_and_nothing_else() {
    let mut cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("kept", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.put("removed", b"value").await.unwrap(), Put::Stored);

    cluster.masters[0].terminate().await;
    cluster.masters[0].add_args(["--disk-reserve", "100000tb"]);
    cluster.masters[0].start();
    cluster.ready().await;
    assert!(client.connected(Duration::from_secs(60)).await);
    // The first look at the disk may come a moment after the first call.
    let mut refused = None;
    until("a put is refused", async || {
        match client.put("refused", b"value").await {
            Err(error) => refused = Some(error),
            Ok(_) => drop(client.remove("refused", true).await),
        }
        refused.is_some()
    })
    .await;
    let refused = refused.unwrap();
    assert!(refused.code == Code::DiskNearlyFull && !refused.is_unknown(), "{refused}");
    let said = refused.to_string();
    let dir = cluster.dir().join("master-1").display().to_string();
    for part in ["starts no puts", &dir, "are needed (--disk-reserve)", "make room"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let log = cluster.masters[0].output();
    assert!(log.contains("is nearly full"), "it is logged, too");

    assert_eq!(client.get("kept").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert!(client.remove("removed", true).await.unwrap());
    assert!(!client.exist("removed").await.unwrap());
    assert!(matches!(http_get(cluster.master_http(0), "/readyz").await, Ok((200, _))));
}
