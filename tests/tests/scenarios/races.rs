use mc_client::Put;
use mc_tests::checker::{Action, Losses, Outcome};
use mc_tests::{Cluster, Recorder, digest, value};

const CLIENTS: u32 = 8;
const KEYS: u64 = 30;

#[tokio::test]
async fn of_many_that_put_one_absent_key_at_once_one_stores_and_all_read_its_value() {
    let cluster = Cluster::builder().start().await;
    let recorder = Recorder::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client().await);
    }
    for key in 0..KEYS {
        let key = format!("raced-{key}");
        let race = clients.iter().zip(0..).map(|(client, number)| {
            let (key, recorder) = (&key, &recorder);
            async move {
                let mine = value(key, u64::from(number), 10_000);
                let start = recorder.now();
                let put = client.put(key, &mine).await.unwrap();
                let outcome = if put == Put::Stored { Outcome::Stored } else { Outcome::Exists };
                recorder.record(number, key, Action::PutIfAbsent(digest(&mine)), outcome, start);
                let start = recorder.now();
                let read = client.get(key).await.unwrap().expect("somebody's value is there");
                recorder.record(number, key, Action::Get, Outcome::Value(digest(&read)), start);
                put
            }
        });
        let puts = futures::future::join_all(race).await;
        assert_eq!(puts.iter().filter(|put| **put == Put::Stored).count(), 1, "{key}: {puts:?}");
    }
    recorder.history().check(Losses::None).assert_ok();
}
