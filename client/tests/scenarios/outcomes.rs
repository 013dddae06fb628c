//! Every answer lost once: what is done again, what is not, and what the caller is told.

use std::time::Duration;

use mc_client::{Code, Put, PutMode, PutOptions};

use crate::support::{Cluster, Fault, On};

#[tokio::test]
async fn a_lost_answer_to_start_or_end_is_asked_for_again_under_the_same_put_id() {
    for (on, fault) in [
        (On::Start, Fault::LoseAnswer),
        (On::Start, Fault::NeverAnswer),
        (On::Start, Fault::Swallow),
        (On::End, Fault::LoseAnswer),
        (On::End, Fault::NeverAnswer),
        (On::End, Fault::Swallow),
        (On::End, Fault::Answer(Code::OutcomeUnknown)),
        (On::End, Fault::Answer(Code::ResourceExhausted)),
    ] {
        let cluster = Cluster::start(1);
        let client = cluster.client().await;
        cluster.fault(on, fault.clone());
        assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored, "{on:?} {fault:?}");
        let world = cluster.world.lock();
        assert_eq!(world.count(on), 2, "{on:?} {fault:?}");
        assert!(world.put_ids.iter().all(|id| *id == world.put_ids[0]));
        assert!(world.faults.is_empty() && world.puts.is_empty());
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_read_is_asked_for_again() {
    for fault in [Fault::LoseAnswer, Fault::Swallow] {
        let cluster = Cluster::start(1);
        let client = cluster.client().await;
        client.put("k", b"v").await.unwrap();
        cluster.fault(On::Get, fault.clone());
        cluster.fault(On::Exist, fault);
        assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
        assert!(client.exist("k").await.unwrap());
    }
}

#[tokio::test]
async fn a_remove_whose_answer_is_lost_is_not_repeated_and_its_outcome_is_unknown() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("k", b"v").await.unwrap();
    cluster.fault(On::Remove, Fault::LoseAnswer);
    let error = client.remove("k", false).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(cluster.world.lock().count(On::Remove), 1);
    assert!(!client.exist("k").await.unwrap());
}

#[tokio::test]
async fn a_remove_that_was_certainly_not_applied_is_made_again() {
    let mut cluster = Cluster::start(2);
    let client = cluster.client().await;
    client.put("k", b"v").await.unwrap();
    cluster.fault(On::Remove, Fault::Answer(Code::ResourceExhausted));
    cluster.masters[0].names(Some(cluster.masters[1].as_leader(2)));
    cluster.masters[1].names(Some(cluster.masters[1].as_leader(2)));
    assert!(client.remove("k", false).await.unwrap(), "after NOT_LEADER and RESOURCE_EXHAUSTED");
    client.put("k", b"v").await.unwrap();
    drop(cluster.masters.remove(1));
    cluster.elect(0, 3);
    match client.remove("k", false).await {
        Ok(removed) => assert!(removed),
        // The connection broke after the call was handed to it: nobody can tell.
        Err(error) => assert!(error.is_unknown(), "{error}"),
    }
}

#[tokio::test]
async fn a_remove_that_hangs_ends_at_its_deadline_with_an_unknown_outcome() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().call_timeout(Duration::from_millis(700)).connect().await.unwrap();
    cluster.fault(On::Remove, Fault::NeverAnswer);
    let error = client.remove("k", false).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(cluster.world.lock().count(On::Remove), 1);
}

#[tokio::test]
async fn a_put_that_a_leader_with_a_nearly_full_disk_refuses_failed_definitely_and_at_once() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.fault(On::Start, Fault::Answer(Code::DiskNearlyFull));
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::DiskNearlyFull, false));
    assert_eq!(cluster.world.lock().count(On::Start), 1, "disks do not empty within a call");
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
}

#[tokio::test]
async fn a_call_that_may_be_tried_again_only_after_its_deadline_fails_at_once() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("k", b"v").await.unwrap();
    cluster.fault(On::Remove, Fault::TooManyCalls);
    let error = client.remove("k", false).await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::ResourceExhausted, false));
    assert_eq!(cluster.world.lock().count(On::Remove), 1, "that is after the call's deadline");
}

#[tokio::test]
async fn a_put_that_is_gone_at_its_first_end_is_started_anew_under_a_new_id() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.fault(On::End, Fault::EndPut);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
    let ids = cluster.world.lock().put_ids.clone();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);

    cluster.fault(On::End, Fault::EndPut);
    cluster.fault(On::End, Fault::EndPut);
    let error = client.put("k2", b"v").await.unwrap_err();
    assert_eq!(error.code, Code::PutGone, "once is enough");
    assert!(!error.is_unknown());
}

#[tokio::test]
async fn an_upsert_that_is_gone_at_its_first_end_failed_definitely() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.fault(On::End, Fault::EndPut);
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    let error = client.put_with("k", b"v", &upsert).await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::PutGone, false));
}

#[tokio::test]
async fn a_put_that_is_gone_after_a_lost_answer_has_an_unknown_outcome() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    // It was stored, then removed by somebody else; the retry finds neither put nor object.
    cluster.fault(On::End, Fault::LoseAnswerAndObject);
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::PutGone, true));
    assert_eq!(cluster.world.lock().put_ids.len(), 1, "it is not put again: that could undo the removal");
}

#[tokio::test]
async fn a_put_that_is_gone_but_whose_object_is_there_was_stored() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.fault(On::End, Fault::LoseAnswer);
    cluster.fault(On::End, Fault::SayGone);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
    assert_eq!(cluster.world.lock().count(On::Get), 1, "the object's version told");
}

#[tokio::test]
async fn an_end_that_gets_no_answer_by_the_deadline_has_an_unknown_outcome() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().call_timeout(Duration::from_millis(1500)).connect().await.unwrap();
    for _ in 0..10 {
        cluster.fault(On::End, Fault::NeverAnswer);
    }
    let error = client.put("k", b"v").await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
}

#[tokio::test]
async fn a_start_that_gets_no_answer_by_the_deadline_did_nothing() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().call_timeout(Duration::from_millis(1500)).connect().await.unwrap();
    for _ in 0..10 {
        cluster.fault(On::Start, Fault::Swallow);
    }
    let error = client.put("k", b"v").await.unwrap_err();
    assert!(!error.is_unknown(), "{error}");
    assert_eq!(error.code, Code::RpcTimeout);
}

#[tokio::test]
async fn a_masters_refusal_of_an_item_is_that_items_error() {
    let cluster = Cluster::start(1);
    cluster.world.lock().stores.clear();
    let client = cluster.client().await;
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::NoAvailableHandle, false));
}
