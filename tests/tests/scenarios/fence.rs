use mc_client::{Put, ShmAccess};
use mc_tests::by_hand::{ByHand, SIZE};
use mc_tests::{Cluster, ClusterBuilder, Faults, unwritten_puts_show_nothing, value};
use mc_transfer::{Seal, ShmTransport, TcpTransport, TransferError};
use mc_types::Code;

fn pool() -> ClusterBuilder {
    Cluster::builder().masters(1).segment("64mb")
}

#[tokio::test]
async fn a_writer_that_wakes_up_after_its_slot_was_reused_does_no_damage() {
    let cluster = pool().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a write under an ended put, to a slot that another object has now");

    // A client that starts a put, and is stopped before it writes.
    let mut sleeper = ByHand::at(cluster.master_address(0)).await;
    let put = sleeper.start("sleeper", 60_000).await;

    // The put is given up while its grant lives, and its slot goes to somebody else.
    sleeper.revoke(&put).await;
    let client = cluster.client().await;
    let owner = put.reused(&client).await;

    // It wakes up, within the life of its grant, and writes.
    let written = put.write(&vec![0xee; SIZE], Seal::Yes).await;
    assert!(
        matches!(&written, Err(TransferError::Refused { reason, .. }) if reason.contains("superseded")),
        "{written:?}"
    );
    fault.happened();
    assert!(client.get(&owner).await.unwrap().as_deref() == Some(&value(&owner, 1, SIZE)[..]), "damaged");
    let ended = sleeper.end(&put, "sleeper", None).await;
    assert_eq!(ended, Code::PutGone as i32, "it is told that its put is gone");
    assert_eq!(client.get("sleeper").await.unwrap(), None);
}

#[tokio::test]
async fn a_put_that_has_ended_cannot_change_its_value_any_more() {
    let cluster = pool().start().await;
    let mut writer = ByHand::at(cluster.master_address(0)).await;
    let put = writer.start("key", 60_000).await;
    let written = put.write(&value("key", 1, SIZE), Seal::Yes).await.unwrap();
    assert_eq!(writer.end(&put, "key", Some(written)).await, Code::Ok as i32);
    let client = cluster.client().await;
    let late = put.write(&value("key", 2, SIZE), Seal::No).await;
    assert!(
        matches!(&late, Err(TransferError::Refused { reason, .. }) if reason.contains("last byte")),
        "{late:?}"
    );
    assert!(client.get("key").await.unwrap().as_deref() == Some(&value("key", 1, SIZE)[..]), "damaged");
}

/// The bytes of a removed object are kept for its readers, unless the pool is full.
#[tokio::test]
async fn a_reader_that_wakes_up_after_its_slot_was_reused_gets_no_bytes() {
    // A grant that outlasts the test on a busy machine.
    let lease = ["--read-lease", "60s"];
    let cluster = pool().master_args(lease).start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("key", &value("key", 1, SIZE)).await.unwrap(), Put::Stored);
    let sleeper = ByHand::at(cluster.master_address(0)).await.find("key").await;
    sleeper.read().await.expect("it may read");
    assert!(client.remove("key", true).await.unwrap());
    sleeper.reused(&client).await;

    let late = sleeper.read().await;
    assert!(
        matches!(&late, Err(TransferError::Refused { reason, .. }) if reason.contains("superseded")),
        "{late:?}"
    );
}

#[tokio::test]
async fn over_tcp_a_put_that_was_not_written_shows_nothing() {
    unwritten_puts_show_nothing(&pool().start().await, &TcpTransport::default()).await;
}

#[tokio::test]
async fn through_shared_memory_a_put_that_was_not_written_shows_nothing() {
    let transport = ShmTransport::new(TcpTransport::default(), ShmAccess::SameUid, Box::new(|_, _| {}));
    unwritten_puts_show_nothing(&pool().start().await, &transport).await;
}
