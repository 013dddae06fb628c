//! Proofs that puts were written: the stores' receipts.

use bytes::Bytes;
use mc_index::{PlacedReplica, ProvenEnd, PutEndItem, State};
use mc_types::{ClusterId, Code, GrantKey, GrantedRange, Receipt};
use smallvec::SmallVec;

/// The end of a put, as its client asks for it.
#[derive(Clone, Debug)]
pub(crate) struct PutToEnd {
    pub(crate) end: PutEndItem,
    /// Receipts for the replicas, one after another in the order of the start's answer.
    pub(crate) receipts: Bytes,
}

/// Replicas whose receipts a put must show.
pub(super) struct Due {
    /// Replicas in the order of the start's answer, each with the keys of its store if that is still mounted.
    replicas: SmallVec<[(PlacedReplica, Option<Keys>); 1]>,
}

/// Keys of a store whose receipts count.
#[derive(Clone, Copy)]
struct Keys {
    newest: GrantKey,
    earlier: Option<GrantKey>,
}

impl Keys {
    fn iter(&self) -> impl Iterator<Item = &GrantKey> {
        std::iter::once(&self.newest).chain(&self.earlier)
    }
}

impl Due {
    /// Returns the replicas of a put; `None` if it is not in flight.
    pub(super) fn of(put: &PutToEnd, state: &State) -> Option<Self> {
        let keys = |replica: &PlacedReplica| {
            let store = state.store(replica.store).filter(|store| store.epoch == replica.epoch)?;
            Some(Keys { newest: *store.grant_key, earlier: store.earlier_key.copied() })
        };
        let replicas = state.put(put.end.put)?.replicas.into_iter().map(|replica| (replica, keys(&replica)));
        Some(Self { replicas: replicas.collect() })
    }
}

/// Checks the receipts of a put. A replica without a good one counts as failed.
///
/// A put that has nothing to prove is passed on under an index that no allocation has. If it is not in flight, its end was applied
/// before and is answered as it was then, or the put is gone.
pub(super) fn check(put: PutToEnd, due: Option<&Due>, cluster: ClusterId) -> Result<ProvenEnd, Code> {
    let PutToEnd { mut end, receipts } = put;
    let Some(due) = due else { return Ok(ProvenEnd { end, index: 0 }) };
    // All replicas of a put are allocated by one entry.
    let index = due.replicas.first().map_or(0, |(placed, _)| placed.index);
    let (mut is_proven, mut is_missing) = (false, false);
    let mut given = receipts.chunks(Receipt::LEN);
    for (at, (placed, keys)) in (0..).zip(&due.replicas) {
        let given = given.next().and_then(Receipt::from_bytes);
        if end.failed.contains(&at) {
            continue;
        }
        let PlacedReplica { store, epoch, segment, offset, len, index } = *placed;
        let range = GrantedRange { segment, offset, len, index };
        let proves = |key: &GrantKey| given == Some(key.receipts().receipt(cluster, store, epoch, &range));
        match keys {
            Some(keys) if keys.iter().any(proves) => is_proven = true,
            // A replica on a store that is no longer mounted is lost, proven or not.
            keys => {
                is_missing |= keys.is_some();
                end.failed.push(at);
            }
        }
    }
    if is_missing && !is_proven { Err(Code::NotProven) } else { Ok(ProvenEnd { end, index }) }
}

/// Puts of replicas on the stores 1, 2 and so on, for tests and fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing {
    use mc_index::KeyHash;
    use mc_types::{PutId, SegmentEpoch, StoreId};

    use super::*;

    pub(super) const CLUSTER: ClusterId = ClusterId(1);
    pub(super) const KEY: GrantKey = GrantKey([7; 32]);
    pub(super) const INDEX: u64 = 9;

    pub(super) fn placed(store: u64) -> PlacedReplica {
        PlacedReplica {
            store: StoreId(store),
            epoch: SegmentEpoch(2),
            segment: 3,
            offset: 64,
            len: 128,
            index: INDEX,
        }
    }

    pub(super) fn receipt(key: GrantKey, cluster: ClusterId, placed: PlacedReplica) -> Vec<u8> {
        let PlacedReplica { store, epoch, segment, offset, len, index } = placed;
        let range = GrantedRange { segment, offset, len, index };
        key.receipts().receipt(cluster, store, epoch, &range).to_bytes().into()
    }

    /// The receipts of the first `replicas` stores.
    pub(crate) fn receipts(replicas: u64) -> Vec<Vec<u8>> {
        (1..=replicas).map(|store| receipt(KEY, CLUSTER, placed(store))).collect()
    }

    /// Returns the replicas that count as failed, of one for each of `mounted`.
    pub(crate) fn checked(failed: &[u8], receipts: &[u8], mounted: &[bool]) -> Result<Vec<u8>, Code> {
        checked_by(&Keys { newest: KEY, earlier: None }, failed, receipts, mounted)
    }

    pub(super) fn checked_by(
        keys: &Keys,
        failed: &[u8],
        receipts: &[u8],
        mounted: &[bool],
    ) -> Result<Vec<u8>, Code> {
        let mut end = PutEndItem::new(PutId(1), KeyHash::of("", b"key"), 0);
        end.failed = failed.into();
        let replicas = (1..).zip(mounted).map(|(store, is)| (placed(store), is.then_some(*keys)));
        let put = PutToEnd { end, receipts: Bytes::copy_from_slice(receipts) };
        let proven = check(put, Some(&Due { replicas: replicas.collect() }), CLUSTER)?;
        assert_eq!(proven.index, INDEX);
        Ok(proven.end.failed.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use mc_index::KeyHash;
    use mc_types::{PutId, SegmentEpoch};

    use super::testing::{CLUSTER, INDEX, KEY, placed, receipt, receipts};
    use super::*;

    fn checked(failed: &[u8], receipts: &[Vec<u8>], mounted: [bool; 2]) -> Result<Vec<u8>, Code> {
        testing::checked(failed, &receipts.concat(), &mounted)
    }

    #[test]
    fn a_replica_counts_that_its_store_has_proven() {
        let [one, two] = receipts(2).try_into().unwrap();
        let (none, mounted) = (vec![0; Receipt::LEN], [true; 2]);
        let both = [one.clone(), two.clone()];
        assert_eq!(checked(&[], &both, mounted), Ok(vec![]));
        assert_eq!(checked(&[1], &both, mounted), Ok(vec![1]), "the client says so");
        assert_eq!(checked(&[], &both[..1], mounted), Ok(vec![1]));
        assert_eq!(checked(&[], &[none.clone(), two.clone()], mounted), Ok(vec![0]));
        assert_eq!(checked(&[0], &[none.clone(), two], mounted), Ok(vec![0]));
        assert_eq!(checked(&[], &both, [true, false]), Ok(vec![1]), "its store is gone");
        assert_eq!(checked(&[0, 1], &[], mounted), Ok(vec![0, 1]), "its client gives it up");
        assert_eq!(checked(&[], &[], [false; 2]), Ok(vec![0, 1]), "its stores are gone");

        for wrong in [
            vec![],
            vec![none.clone(), none],
            vec![one[..Receipt::LEN - 1].to_vec()],
            // That of the other replica.
            vec![vec![0; Receipt::LEN], one],
            vec![receipt(GrantKey([8; 32]), CLUSTER, placed(1))],
            vec![receipt(KEY, ClusterId(2), placed(1))],
            vec![receipt(KEY, CLUSTER, PlacedReplica { index: INDEX - 1, ..placed(1) })],
            vec![receipt(KEY, CLUSTER, PlacedReplica { epoch: SegmentEpoch(1), ..placed(1) })],
            vec![receipt(KEY, CLUSTER, PlacedReplica { offset: 128, ..placed(1) })],
        ] {
            assert_eq!(checked(&[], &wrong, mounted), Err(Code::NotProven), "{wrong:?}");
        }
    }

    #[test]
    fn a_receipt_under_the_key_that_was_replaced_counts() {
        let given = receipts(1).concat();
        let newest = GrantKey([8; 32]);
        let by = |earlier| testing::checked_by(&Keys { newest, earlier }, &[], &given, &[true]);
        assert_eq!(by(Some(KEY)), Ok(vec![]));
        assert_eq!(by(Some(GrantKey([9; 32]))), Err(Code::NotProven));
        assert_eq!(by(None), Err(Code::NotProven), "the time for it is over");
    }

    #[test]
    fn a_put_that_is_not_in_flight_names_no_allocation() {
        let put = PutToEnd {
            end: PutEndItem::new(PutId(1), KeyHash::of("", b"key"), 0),
            receipts: receipt(KEY, CLUSTER, placed(1)).into(),
        };
        assert_eq!(check(put, None, CLUSTER).map(|proven| proven.index), Ok(0));
    }
}
