use mc_transfer::{Seal, TransferError, Transport};
use mc_types::Code;

use crate::by_hand::{ByHand, SIZE};
use crate::{Cluster, value};

/// Checks that no put shows what it was not given: the places of puts still hold what was removed before, here another
/// tenant's. The pool has one master and one store of 64 MiB.
pub async fn unwritten_puts_show_nothing(cluster: &Cluster, transport: &dyn Transport) {
    let victim = cluster.client_builder().tenant("victim").connect().await.unwrap();
    for at in 0..10 {
        let key = format!("secret-{at}");
        victim.put(&key, &value(&key, 1, SIZE)).await.unwrap();
        victim.remove(&key, true).await.unwrap();
    }
    let mut thief = ByHand::at(cluster.master_address(0)).await;
    let client = cluster.client().await;
    let own = value("stolen", 1, SIZE);
    let not_proven = Code::NotProven as i32;

    let put = thief.start("stolen", 60_000).await;
    assert_eq!(thief.end(&put, "stolen", None).await, not_proven, "nothing was written");
    let half = put.write_by(transport, &own[..SIZE / 2], Seal::Yes).await;
    assert!(matches!(half, Err(TransferError::Refused { .. })), "{half:?}");
    assert_eq!(thief.end(&put, "stolen", None).await, not_proven, "half of it was written");
    let other = thief.start("other", 60_000).await;
    let written = other.write_by(transport, &own, Seal::Yes).await.unwrap();
    assert_eq!(thief.end(&put, "stolen", Some(written)).await, not_proven, "another put was written");
    assert_eq!(client.get("stolen").await.unwrap(), None);

    // The place of a put that was given up and starts again is another one to the store.
    thief.revoke(&other).await;
    let again = thief.start_as(other.put_id.clone(), "other", 60_000).await;
    assert_eq!(thief.end(&again, "other", Some(written)).await, not_proven, "that was before");

    let written = put.write_by(transport, &own, Seal::Yes).await.unwrap();
    assert_eq!(thief.end(&put, "stolen", Some(written)).await, Code::Ok as i32);
    assert!(client.get("stolen").await.unwrap().as_deref() == Some(&own[..]), "its own bytes");
}
