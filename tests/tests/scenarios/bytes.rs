use mc_client::Put;
use mc_tests::{Cluster, value};

const SIZES: [usize; 13] = [
    1,
    2,
    63,
    64,
    65,
    4_095,
    4_097,
    (1 << 20) - 1,
    (1 << 20) + 1,
    3_274_752,
    16 << 20,
    (64 << 20) + 7,
    256 << 20,
];

#[tokio::test]
async fn every_size_comes_back_as_it_went_in() {
    let cluster = Cluster::builder().masters(1).segment("512mb").start().await;
    let (writer, reader) = (cluster.client().await, cluster.client().await);
    for size in SIZES {
        let key = format!("{size} bytes");
        let bytes = value(&key, 1, size);
        assert_eq!(writer.put(&key, &bytes).await.unwrap(), Put::Stored, "{key}");
        assert_eq!(reader.size(&key).await.unwrap(), Some(size as u64), "{key}");
        let back = reader.get(&key).await.unwrap();
        assert!(back.as_deref() == Some(&bytes[..]), "{key}: other bytes came back");
    }
}
