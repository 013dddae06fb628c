//! The blocking client: every call from a thread without a runtime, and none from one that drives tasks.

use std::time::Duration;

use mc_client::{
    ByteRange, ByteSize, Code, Health, Put, PutOptions, RangeFrom, RangeInto, ReadInto, WriteFrom, blocking,
};
use tokio::runtime::{Builder, Runtime};

use crate::support::{Cluster, Fault, On};

fn client(cluster: &Cluster) -> blocking::Client {
    cluster.builder().local_cache(ByteSize(0)).connect_blocking().unwrap()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn calls_of_many_threads_do_what_those_of_the_async_client_do() {
    let cluster = Cluster::start(1);
    let client = client(&cluster);
    assert_eq!(client.put("k", b"value").unwrap(), Put::Stored);
    assert_eq!(client.put("k", b"other").unwrap(), Put::AlreadyExists);
    assert_eq!(client.get("k").unwrap().unwrap(), b"value"[..]);
    let range = ByteRange { offset: 1, len: 2 };
    assert_eq!(client.get_range("k", range).unwrap().unwrap(), b"al"[..]);
    std::thread::scope(|threads| {
        for n in 0..8_u8 {
            let client = client.clone();
            threads.spawn(move || {
                let keys: Vec<String> = (0..20).map(|i| format!("{n}/{i}")).collect();
                let items: Vec<_> = keys.iter().map(|key| (key, [n; 3])).collect();
                let put = client.batch_put(&items, &PutOptions::default());
                assert!(put.into_iter().all(|put| put.unwrap() == Put::Stored));
                let got = client.batch_get(&keys);
                assert!(got.into_iter().all(|got| got.unwrap().unwrap() == [n; 3][..]));
            });
        }
    });
    cluster.world.lock().page = 7;
    assert_eq!(client.list("3/").map(|object| object.unwrap().size.0).sum::<u64>(), 60);
    assert!(client.remove("k", false).unwrap());
    assert_eq!(client.batch_exist(&["k", "0/0"]).into_iter().flatten().collect::<Vec<_>>(), [false, true]);
    let status = client.wait(client.as_async().admin().status());
    assert_eq!(status.masters.len(), 1);
}

#[test]
fn sessions_read_and_write_by_ranges() {
    let cluster = Cluster::start(1);
    let client = client(&cluster);
    let items = [("one", 4), ("two", 4), ("three", 4)];
    let opened = client.batch_put_session(&items, &PutOptions::default());
    let mut sessions: Vec<_> = opened.into_iter().map(|session| session.unwrap().unwrap()).collect();
    sessions.pop().unwrap().abort().unwrap();
    sessions[0].write(2, b"lf").unwrap();
    let ranges =
        [[RangeFrom { offset: 0, from: b"ha" }].as_slice(), &[RangeFrom { offset: 0, from: b"full" }]];
    let writes = sessions.iter().zip(ranges);
    let writes: Vec<_> = writes.map(|(session, ranges)| WriteFrom::new(session.as_async(), ranges)).collect();
    assert!(client.batch_write_from(&writes).iter().all(Result::is_ok));
    assert!(client.batch_finish(&sessions).into_iter().all(|put| put.unwrap() == Put::Stored));
    let session = client.put_session("three", 2, &PutOptions::default()).unwrap().unwrap();
    client.batch_abort(vec![session]).unwrap();

    let session = client.get_session("one").unwrap().unwrap();
    assert_eq!(session.read(ByteRange { offset: 1, len: 3 }).unwrap(), b"alf"[..]);
    let mut into = [0; 4];
    let mut read = [ReadInto::new(session.as_async(), vec![RangeInto { offset: 0, into: &mut into }])];
    assert_eq!(client.batch_read_into(&mut read).remove(0).unwrap(), 4);
    assert_eq!(&into, b"half");
    assert!(client.batch_get_session(&["three"]).remove(0).unwrap().is_none());
}

#[test]
fn a_call_ends_by_its_deadline_and_says_why_it_failed() {
    let cluster = Cluster::start(1);
    let client = client(&cluster);
    let soon = PutOptions::default().with_deadline(Duration::from_millis(200));
    cluster.fault(On::Start, Fault::Swallow);
    let error = client.put_with("k", b"value", &soon).unwrap_err();
    assert_eq!(error.code, Code::RpcTimeout);
    client.close();
    assert!(client.get("k").unwrap_err().why.contains("closed"));
}

#[test]
#[should_panic(expected = "Cannot start a runtime from within a runtime")]
fn a_call_in_a_task_panics_and_blocks_nothing() {
    let cluster = Cluster::start(1);
    let client = client(&cluster);
    runtime().block_on(async { client.get("k") }).unwrap();
}

#[test]
fn handles_go_from_blocking_to_async_threads_and_back() {
    let cluster = Cluster::start(1);
    let client = runtime().block_on(cluster.client());
    runtime().block_on(async move {
        let blocking = blocking::Client::from(client.clone());
        let put = tokio::task::spawn_blocking(move || blocking.put("k", b"value"));
        assert_eq!(put.await.unwrap().unwrap(), Put::Stored);
        let got = mc_client::Client::from(blocking::Client::from(client)).get("k").await;
        assert_eq!(got.unwrap().unwrap(), b"value"[..]);
    });
}

#[test]
fn a_runtime_of_the_callers_serves_blocking_calls_until_it_ends() {
    let cluster = Cluster::start(1);
    let given = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = cluster.builder().runtime(given.handle().clone()).connect_blocking().unwrap();
    assert_eq!(client.put("k", b"value").unwrap(), Put::Stored);
    drop(given);
    assert_eq!(client.health(), Health::Closed);
    assert!(client.get("k").unwrap_err().why.contains("closed"));
}
