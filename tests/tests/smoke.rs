//! The shortest way through everything.

use mc_client::Put;
use mc_tests::{Cluster, value};

#[tokio::test]
async fn an_object_that_was_put_is_got_by_another_client() {
    let cluster = Cluster::builder().start().await;
    let client = cluster.client().await;
    let bytes = value("k", 1, 3_274_752);
    assert_eq!(client.put("k", &bytes).await.unwrap(), Put::Stored);
    assert_eq!(client.put("k", b"other").await.unwrap(), Put::AlreadyExists);
    let other = cluster.client().await;
    assert_eq!(other.get("k").await.unwrap().as_deref(), Some(&bytes[..]));
    assert!(other.remove("k", true).await.unwrap());
    assert_eq!(client.get("k").await.unwrap(), None);
}
