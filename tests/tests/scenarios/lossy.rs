use bytes::Bytes;
use mc_proto::v1;
use mc_tests::by_hand::{self, ByHand, receipt};
use mc_tests::checker::{Action, Losses, Outcome};
use mc_tests::{Cluster, Faults, LossyMaster, Workload};
use mc_transfer::Seal;
use mc_types::{Code, PutId};
use tonic::{Response, Status};

#[tokio::test]
async fn every_reply_is_lost_once_and_the_repetition_gets_the_same_answer() {
    let cluster = Cluster::builder().masters(1).start().await;
    let mut faults = Faults::new();
    let lost = faults.plan_times("a reply was lost and its call came again", 200);
    let never_answered = faults.plan("the reply of a remove was lost");
    let proxy = LossyMaster::start(cluster.master_address(0)).await;
    let through_proxy = cluster.client_builder().masters(proxy.address());
    let running = Workload::new(6).clients(3).keys(20).start(&through_proxy).await;
    running.acknowledged(100).await;
    let history = running.stop().await;
    (0..proxy.repeated()).for_each(|_| lost.happened());
    (0..proxy.removes()).for_each(|_| never_answered.happened());
    println!(
        "{history}; {} replies lost, {} calls repeated, {} removes",
        proxy.lost(),
        proxy.repeated(),
        proxy.removes()
    );
    assert_eq!(proxy.changed_answers(), Vec::<String>::new(), "the same put id got another answer");
    let removes: Vec<_> =
        history.operations.iter().filter(|operation| operation.action == Action::Remove).collect();
    assert!(
        proxy.removes() <= removes.len() as u64,
        "a remove was repeated: {} of {}",
        proxy.removes(),
        removes.len()
    );
    let answered =
        removes.iter().find(|remove| matches!(remove.outcome, Outcome::Removed | Outcome::NothingToRemove));
    assert_eq!(answered, None, "no reply to a remove came through");
    history.check(Losses::None).assert_ok();
}

fn raw(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Makes a call whose first reply is lost, and makes it again.
async fn again<T, F>(call: impl Fn() -> F) -> T
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    assert!(call().await.is_err(), "the first reply is lost");
    call().await.expect("the second is not").into_inner()
}

#[tokio::test]
async fn a_repeated_revoke_gets_the_same_answer_whether_its_put_had_ended_or_not() {
    let cluster = Cluster::builder().masters(1).start().await;
    let mut faults = Faults::new();
    let lost = faults.plan_times("a reply was lost and its call came again", 3);
    let proxy = LossyMaster::start(cluster.master_address(0)).await;
    let (master, caller) = (by_hand::master_at(proxy.address()), by_hand::caller());
    let [revoked, ended] = [(); 2].map(|()| raw(&PutId::random().to_bytes()));

    let item = |put_id: &Bytes, key: &[u8]| v1::PutStartItem {
        put_id: put_id.clone(),
        key: raw(key),
        size: 1,
        ..v1::PutStartItem::default()
    };
    let start = v1::BatchPutStartRequest {
        caller: Some(caller.clone()),
        items: vec![item(&revoked, b"revoked"), item(&ended, b"ended")],
        ..v1::BatchPutStartRequest::default()
    };
    let started = again(|| {
        let (mut master, start) = (master.clone(), start.clone());
        async move { master.batch_put_start(start).await }
    })
    .await;
    assert!(started.results.iter().all(|result| result.code == Code::Ok as i32), "{started:?}");

    let put = ByHand::at(cluster.master_address(0)).await.granted(
        ended.clone(),
        &started.results[1].replicas,
        &started.grants,
    );
    let receipts = receipt(put.write(b"1", Seal::Yes).await.unwrap());
    let (put_id, key) = (ended.clone(), raw(b"ended"));
    let item = v1::PutEndItem { put_id, key, receipts, ..v1::PutEndItem::default() };
    let end = v1::BatchPutEndRequest {
        caller: Some(caller.clone()),
        items: vec![item],
        ..v1::BatchPutEndRequest::default()
    };
    let done = again(|| {
        let (mut master, end) = (master.clone(), end.clone());
        async move { master.batch_put_end(end).await }
    })
    .await;
    assert_eq!(done.results[0].code, Code::Ok as i32);

    let revoke = v1::BatchPutRevokeRequest {
        caller: Some(caller),
        put_ids: vec![revoked, ended],
        ..v1::BatchPutRevokeRequest::default()
    };
    let answer = again(|| {
        let (mut master, revoke) = (master.clone(), revoke.clone());
        async move { master.batch_put_revoke(revoke).await }
    })
    .await;
    let codes: Vec<i32> = answer.results.iter().map(|result| result.code).collect();
    assert_eq!(codes, [Code::Ok as i32, Code::InvalidWrite as i32]);

    (0..proxy.repeated()).for_each(|_| lost.happened());
    assert_eq!(proxy.changed_answers(), Vec::<String>::new());
}
