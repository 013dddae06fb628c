use mc_client::{Client, Put, PutOptions};
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

#[tokio::test]
async fn a_tenant_lists_its_own_keys_page_by_page() {
    const KEYS: usize = 250;
    let cluster = Cluster::builder().masters(1).stores(1).start().await;
    let red = cluster.client_builder().tenant("red").connect().await.expect("the settings are right");
    let nobody = cluster.client().await;
    let items: Vec<_> = (0..KEYS).map(|n| (format!("{}/{n}", n % 2), b"value")).collect();
    assert!(
        red.batch_put(&items, &PutOptions::default())
            .await
            .into_iter()
            .all(|put| put.unwrap() == Put::Stored)
    );
    assert_eq!(nobody.put("0/nobody", b"1").await.unwrap(), Put::Stored);

    let list = async |client: &Client, prefix: &str, limit: u32| {
        let (mut listed, mut from) = (Vec::new(), None);
        loop {
            let page = client.list_keys(prefix, from, limit).await.unwrap();
            assert!(page.keys.len() <= limit as usize);
            listed.extend(page.keys.into_iter().map(|it| (it.key, it.size.0)));
            match page.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        listed.sort();
        listed
    };
    let mut expected: Vec<_> = items.iter().map(|(key, _)| (key.clone().into(), 5)).collect();
    expected.sort();
    assert_eq!(list(&red, "", 7).await, expected);
    expected.retain(|(key, _)| key.starts_with(b"1/"));
    assert_eq!(list(&red, "1/", 100).await, expected);
    assert_eq!(list(&red, "none", 100).await, []);
    assert_eq!(list(&nobody, "", 100).await, [("0/nobody".into(), 1)]);
}
