use mc_client::{Client, Put};
use mc_tests::Cluster;

#[tokio::test]
async fn a_key_is_another_object_to_each_tenant() {
    let cluster = Cluster::builder().masters(1).stores(1).start().await;
    let tenant = async |name: &str| -> Client {
        cluster.client_builder().tenant(name).connect().await.expect("the settings are right")
    };
    let (red, blue) = (tenant("red").await, tenant("blue").await);
    let nobody = cluster.client().await;
    assert_eq!(red.put("k", b"red").await.unwrap(), Put::Stored);
    for other in [&blue, &nobody] {
        assert_eq!(other.get("k").await.unwrap(), None);
        assert!(!other.exist("k").await.unwrap());
        assert!(!other.remove("k", true).await.unwrap());
    }

    assert_eq!(blue.put("k", b"blue").await.unwrap(), Put::Stored);
    assert_eq!(nobody.put("k", b"nobody").await.unwrap(), Put::Stored);
    for (client, value) in [(&red, &b"red"[..]), (&blue, b"blue"), (&nobody, b"nobody")] {
        assert_eq!(client.get("k").await.unwrap().as_deref(), Some(value));
        assert_eq!(client.size("k").await.unwrap(), Some(value.len() as u64));
    }

    assert!(blue.remove("k", true).await.unwrap());
    assert_eq!(blue.get("k").await.unwrap(), None);
    assert_eq!(red.get("k").await.unwrap().as_deref(), Some(&b"red"[..]));
    assert_eq!(nobody.get("k").await.unwrap().as_deref(), Some(&b"nobody"[..]));
}
