//! Placements and grants from a master's answer, checked before use.

use std::time::Duration;

use mc_proto::v1::{GetResult, Replica, StoreGrant};
use mc_transfer::{Peer, PeerEndpoint};
use mc_types::{ClusterId, ProofKey, PutId, SealedGrant, SegmentEpoch, StoreId};
use tokio::time::Instant;

/// A store and a sealed grant for some of its ranges.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) peer: Peer,
    pub(crate) grant: SealedGrant,
    /// When the request was sent that was answered with this grant.
    pub(crate) offered: Instant,
}

/// Place of one replica: the index of its grant in the answer, its range in that grant, and its segment and offset in
/// the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) store: StoreId,
    pub(crate) grant: usize,
    pub(crate) range: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

/// An object as a master describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) version: PutId,
    pub(crate) size: u64,
    pub(crate) checksum: u64,
    /// Whether its places may hold another object's bytes, so that it must be read whole and checked.
    pub(crate) doubtful: bool,
    pub(crate) places: Vec<Place>,
}

/// Reads the grants of an answer, in order; a malformed one becomes `None`.
pub(crate) fn grants(cluster: ClusterId, grants: Vec<StoreGrant>, offered: Instant) -> Vec<Option<Granted>> {
    let read = |grant: StoreGrant| {
        let endpoints = grant.endpoints.into_iter().map(endpoint).collect();
        let store = StoreId::from_bytes(&grant.store_id)?;
        let epoch = SegmentEpoch::from_bytes(&grant.epoch)?;
        let proof_key = match &grant.proof_key[..] {
            [] => None,
            key => Some(ProofKey::from_bytes(key)?),
        };
        let grant = SealedGrant { bytes: grant.grant, proof_key };
        Some(Granted { peer: Peer { cluster, store, epoch, endpoints }, grant, offered })
    };
    grants.into_iter().map(read).collect()
}

pub(crate) fn endpoint(endpoint: mc_proto::v1::Endpoint) -> PeerEndpoint {
    PeerEndpoint {
        transport: endpoint.transport,
        address: endpoint.address,
        attributes: endpoint.attributes.into_iter().collect(),
    }
}

/// Yields the replicas that can be used, each with its number in the answer. It leaves out a replica that names no
/// grant of the answer for its store, or that is too short for the object.
pub(crate) fn places<'a>(
    replicas: &'a [Replica],
    grants: &'a [Option<Granted>],
    size: u64,
) -> impl Iterator<Item = (u32, Place)> + 'a {
    replicas.iter().zip(0..).filter_map(move |(replica, number)| {
        let at = usize::try_from(replica.grant).ok()?;
        let granted = grants.get(at)?.as_ref()?;
        let place = Place {
            store: granted.peer.store,
            grant: at,
            range: replica.range,
            segment: replica.segment,
            offset: replica.offset,
        };
        (StoreId::from_bytes(&replica.store_id) == Some(place.store) && replica.length >= size)
            .then_some((number, place))
    })
}

/// Reads the description of an object; `None` when it is malformed.
pub(crate) fn described(result: &GetResult, grants: &[Option<Granted>]) -> Option<Described> {
    Some(Described {
        version: PutId::from_bytes(&result.version)?,
        size: (result.size > 0).then_some(result.size)?,
        checksum: result.checksum,
        doubtful: result.doubtful,
        places: places(&result.replicas, grants, result.size).map(|(_, place)| place).collect(),
    })
}

/// Returns until when placements may be used. The lease counts from the sending of the request, less 5 % because our
/// clock may run slower than the leader's.
pub(crate) fn lease_end(sent_at: Instant, lease_ms: u64) -> Instant {
    let usable = Duration::from_millis(lease_ms).mul_f64(0.95);
    // An hour replaces a lease that is too long for the clock.
    sent_at.checked_add(usable).unwrap_or_else(|| sent_at + Duration::from_secs(3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(store: u64) -> StoreGrant {
        StoreGrant {
            store_id: StoreId(store).to_bytes().to_vec().into(),
            epoch: SegmentEpoch(1).to_bytes().to_vec().into(),
            ..StoreGrant::default()
        }
    }

    fn replica(store: u64, grant: u32, length: u64) -> Replica {
        Replica {
            store_id: StoreId(store).to_bytes().to_vec().into(),
            grant,
            length,
            range: 9,
            segment: 3,
            offset: 4096,
            ..Replica::default()
        }
    }

    #[test]
    fn a_lease_counts_from_the_sending_less_five_percent() {
        let sent_at = Instant::now();
        assert_eq!(lease_end(sent_at, 10_000), sent_at + Duration::from_millis(9_500));
        assert_eq!(lease_end(sent_at, 0), sent_at);
        assert!(lease_end(sent_at, u64::MAX) > sent_at, "nonsense does not panic");
    }

    #[test]
    fn a_grant_comes_with_the_key_of_its_proofs_or_none() {
        let with = |proof_key: Vec<u8>| StoreGrant { proof_key: proof_key.into(), ..granted(1) };
        let keys = [vec![], vec![5; ProofKey::LEN], vec![5; ProofKey::LEN - 1]];
        let grants = grants(ClusterId(1), keys.map(with).into(), Instant::now());
        let key_of = |granted: Option<Granted>| granted.map(|granted| granted.grant.proof_key);
        let keys: Vec<_> = grants.into_iter().map(key_of).collect();
        assert_eq!(keys, [Some(None), Some(ProofKey::from_bytes(&[5; ProofKey::LEN])), None]);
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let broken = StoreGrant { epoch: vec![1].into(), ..granted(3) };
        let grants = grants(ClusterId(1), vec![granted(1), granted(2), broken], Instant::now());
        let replicas =
            [replica(1, 0, 10), replica(1, 1, 10), replica(2, 1, 9), replica(3, 2, 10), replica(1, 7, 10)];
        let places: Vec<_> = places(&replicas, &grants, 10).collect();
        assert_eq!(
            places,
            [(0, Place { store: StoreId(1), grant: 0, range: 9, segment: 3, offset: 4096 })],
            "another store's grant, too short, a malformed grant, no such grant"
        );
        assert_eq!(described(&GetResult::default(), &grants), None, "no version");
    }
}
