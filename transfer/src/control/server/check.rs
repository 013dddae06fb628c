//! Checks whether a request may be served: decisions over values, no I/O.

use mc_net::{Demands, Peer, Principal, Stranger, TlsLevel};
use mc_types::{
    Access, ClusterId, ClusterTime, Grant, GrantError, GrantedRange, SegmentEpoch, SpiffeId, StoreId,
};

use crate::authority::Times;
use crate::control::wire::{self, Hello, Op, Status};
use crate::fence::Fenced;

/// The store and epoch whose memory the server serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryId {
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
}

/// Reason for a refusal, in words for the peer's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "this store speaks versions {} to {} of the transfer protocol, the client {} to {}: upgrade the older side",
        ours.0, ours.1, theirs.0, theirs.1
    )]
    Version { ours: (u16, u16), theirs: (u16, u16) },
    #[error("this store serves cluster {here}, the client means cluster {meant}")]
    Cluster { here: ClusterId, meant: ClusterId },
    #[error("this is store {here}, the client means store {meant}: look the placement up again")]
    Store { here: StoreId, meant: StoreId },
    #[error(
        "this store's memory has epoch {here}, the client means epoch {meant}: look the placement up again"
    )]
    Epoch { here: SegmentEpoch, meant: SegmentEpoch },
    #[error(
        "this store has {most} data connections, and no more descriptors for others: try again, or raise its limit of open \
         files"
    )]
    Connections { most: usize },
    #[error(
        "this store requires TLS: give the client the folder with its certificates, by --tls-dir or MC_TLS_DIR"
    )]
    Plain,
    #[error(
        "this store requires a certificate that says who the client is: put tls.crt and tls.key of it into the folder of its \
         certificates"
    )]
    Anonymous,
    #[error(
        "the client's certificate is of {id}, and this store is of the trust domain {trust}: give the client a certificate of \
         that domain"
    )]
    Stranger { id: SpiffeId, trust: String },
    #[error("this store has not heard from a master yet: try again")]
    NotReady,
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(
        "the grant works for its holder alone, and the request has no proof that the client is: a client gets the key for that \
         with its grants, from a master over TLS; upgrade it if it is older than that"
    )]
    NoProof,
    #[error(
        "the proof that the client holds the grant is wrong: the request was altered, or is of another connection or client"
    )]
    WrongProof,
    #[error(
        "this store takes plain connections for grants alone that masters give over TLS: give the client the folder with its \
         certificates, by --tls-dir or MC_TLS_DIR"
    )]
    PlainGrant,
    #[error("request {id} with a proof came after request {last}: it is repeated")]
    Repeated { id: u64, last: u64 },
    #[error("the grant permits to {}, the request is to {}", verb(*granted), verb(*asked))]
    Access { granted: Access, asked: Access },
    #[error("the grant expired at {}, it is {}: look the placement up again", expires.0, now.0)]
    Expired { expires: ClusterTime, now: ClusterTime },
    #[error("the grant has no range {range}, only {ranges}")]
    NoRange { range: u32, ranges: usize },
    #[error("{len} bytes at {offset} are not inside the granted range of {granted}")]
    OutsideGrant { offset: u64, len: u64, granted: u64 },
    #[error("the granted range, {len} bytes at {offset} of segment {segment}, is not in this store's memory")]
    OutsideMemory { segment: u32, offset: u64, len: u64 },
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error(
        "the transfer was cut off, because another range of its batch belongs to a newer write: try again"
    )]
    CutOff,
    #[error("the transfer by RDMA failed: {0}")]
    Device(String),
    #[error("not over this transport: {0}")]
    OtherWay(String),
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
    }
}

impl Refusal {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Version { .. }
            | Self::Cluster { .. }
            | Self::Store { .. }
            | Self::Epoch { .. }
            | Self::Plain
            | Self::PlainGrant
            | Self::Anonymous
            | Self::Stranger { .. } => Status::Identity,
            Self::NotReady => Status::NotReady,
            Self::Grant(_)
            | Self::NoProof
            | Self::WrongProof
            | Self::Repeated { .. }
            | Self::Access { .. } => Status::Grant,
            Self::Expired { .. } | Self::Fenced(Fenced::Forgotten) => Status::Expired,
            Self::Fenced(Fenced::Superseded { .. } | Fenced::Ended { .. }) => Status::Superseded,
            Self::Fenced(Fenced::Sealed { .. }) => Status::Sealed,
            Self::Connections { .. } | Self::CutOff | Self::Fenced(Fenced::Full | Fenced::InTransfer) => {
                Status::Busy
            }
            Self::Device(_) => Status::Device,
            Self::OtherWay(_) => Status::OtherWay,
            Self::NoRange { .. }
            | Self::OutsideGrant { .. }
            | Self::OutsideMemory { .. }
            | Self::Fenced(Fenced::Overlap { .. } | Fenced::Incomplete { .. } | Fenced::Parts { .. }) => {
                Status::Range
            }
        }
    }
}

/// Checks that a peer may connect to a store that insists on TLS as far as `level` says, and is `ours`.
pub(crate) fn check_peer(level: TlsLevel, ours: Option<&SpiffeId>, peer: &Peer) -> Result<(), Refusal> {
    // A process without an identity has no trust domain, and no identity has an empty one.
    let trust = ours.map_or("", SpiffeId::trust);
    match Principal::of(peer, Some(Demands { level, trust })) {
        Principal::Open | Principal::Named(_) => Ok(()),
        Principal::Stranger(Stranger::Plain) => Err(Refusal::Plain),
        Principal::Stranger(Stranger::Anonymous) => Err(Refusal::Anonymous),
        Principal::Stranger(Stranger::Foreign { id, ours }) => Err(Refusal::Stranger { id, trust: ours }),
    }
}

/// Checks a client's hello and returns the protocol version to speak.
pub(crate) fn check_hello(here: MemoryId, times: Option<Times>, hello: &Hello) -> Result<u16, Refusal> {
    let (ours, theirs) = (wire::VERSIONS, hello.versions);
    let version = wire::common_version(ours, theirs).ok_or(Refusal::Version { ours, theirs })?;
    check_identity(here, times, hello.cluster, hello.store, hello.epoch)?;
    Ok(version)
}

/// Checks that `grant` permits `asked` at this store now; returns the cluster's time.
pub(crate) fn check_grant(
    here: MemoryId,
    times: Option<Times>,
    grant: &Grant,
    asked: Access,
) -> Result<Times, Refusal> {
    let times = check_identity(here, times, grant.cluster, grant.store, grant.epoch)?;
    if grant.access != asked {
        return Err(Refusal::Access { granted: grant.access, asked });
    }
    if grant.expires <= times.now {
        return Err(Refusal::Expired { expires: grant.expires, now: times.now });
    }
    Ok(times)
}

fn check_identity(
    here: MemoryId,
    times: Option<Times>,
    cluster: ClusterId,
    store: StoreId,
    epoch: SegmentEpoch,
) -> Result<Times, Refusal> {
    let times = times.ok_or(Refusal::NotReady)?;
    if times.cluster != cluster {
        return Err(Refusal::Cluster { here: times.cluster, meant: cluster });
    }
    if here.store != store {
        return Err(Refusal::Store { here: here.store, meant: store });
    }
    if here.epoch != epoch {
        return Err(Refusal::Epoch { here: here.epoch, meant: epoch });
    }
    Ok(times)
}

/// Returns the granted range that `op` names, if the operation lies inside it.
pub(crate) fn check_op(grant: &Grant, op: Op) -> Result<GrantedRange, Refusal> {
    let range = usize::try_from(op.range).ok().and_then(|place| grant.ranges.get(place));
    let range = *range.ok_or(Refusal::NoRange { range: op.range, ranges: grant.ranges.len() })?;
    match op.offset.checked_add(op.len) {
        Some(end) if end <= range.len => Ok(range),
        _ => Err(Refusal::OutsideGrant { offset: op.offset, len: op.len, granted: range.len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: MemoryId = MemoryId { store: StoreId(2), epoch: SegmentEpoch(3) };

    fn times() -> Option<Times> {
        Some(Times { cluster: ClusterId(1), heard: ClusterTime(90), now: ClusterTime(100) })
    }

    fn grant() -> Grant {
        Grant {
            cluster: ClusterId(1),
            store: StoreId(2),
            epoch: SegmentEpoch(3),
            access: Access::Read,
            expires: ClusterTime(101),
            tenant: String::new(),
            needs_proof: false,
            ranges: vec![GrantedRange { segment: 0, offset: 64, len: 128, index: 9 }],
        }
    }

    #[test]
    fn a_grant_holds_for_its_cluster_store_epoch_access_and_time_only() {
        assert!(check_grant(HERE, times(), &grant(), Access::Read).is_ok());
        let refused = |grant: &Grant, asked| check_grant(HERE, times(), grant, asked).unwrap_err().status();
        assert_eq!(refused(&Grant { cluster: ClusterId(9), ..grant() }, Access::Read), Status::Identity);
        assert_eq!(refused(&Grant { store: StoreId(9), ..grant() }, Access::Read), Status::Identity);
        assert_eq!(refused(&Grant { epoch: SegmentEpoch(9), ..grant() }, Access::Read), Status::Identity);
        assert_eq!(refused(&grant(), Access::Write), Status::Grant);
        assert_eq!(refused(&Grant { expires: ClusterTime(100), ..grant() }, Access::Read), Status::Expired);
        assert_eq!(check_grant(HERE, None, &grant(), Access::Read).unwrap_err(), Refusal::NotReady);
    }

    #[test]
    fn an_operation_stays_inside_its_range_whatever_its_numbers() {
        let op = |range, offset, len| check_op(&grant(), Op { range, offset, len });
        assert!(op(0, 0, 128).is_ok());
        assert!(op(0, 128, 0).is_ok());
        assert!(op(0, 1, 128).is_err());
        assert!(op(0, u64::MAX, 2).is_err());
        assert!(op(1, 0, 1).is_err());
        assert!(op(u32::MAX, 0, 1).is_err());
    }

    #[test]
    fn a_store_that_requires_tls_serves_those_with_a_name_in_its_trust_domain() {
        let named = |id: &str| Peer::Named(id.parse().unwrap());
        let ours: SpiffeId = "spiffe://here/mc/store/kv".parse().unwrap();
        let refused = |level, peer| check_peer(level, Some(&ours), &peer).err().map(|why| why.to_string());
        let (ours, stranger) =
            (named("spiffe://here/mc/tenant/t/ro/a"), named("spiffe://there/mc/tenant/t/ro/a"));
        for (peer, why) in [(Peer::Plain, "--tls-dir"), (Peer::Anonymous, "tls.crt")] {
            assert!(refused(TlsLevel::Require, peer.clone()).unwrap().contains(why));
            assert_eq!(refused(TlsLevel::Prefer, peer.clone()), None);
            assert_eq!(refused(TlsLevel::Allow, peer), None);
        }
        for level in [TlsLevel::Allow, TlsLevel::Prefer, TlsLevel::Require] {
            assert_eq!(refused(level, ours.clone()), None);
        }
        assert_eq!(refused(TlsLevel::Prefer, stranger.clone()), None, "as good as none");
        assert!(refused(TlsLevel::Require, stranger).unwrap().contains("trust domain here"));
    }

    #[test]
    fn refusals_name_both_sides() {
        let hello =
            Hello { versions: (8, 9), cluster: ClusterId(1), store: StoreId(2), epoch: SegmentEpoch(0xbad) };
        let skew = check_hello(HERE, times(), &hello).unwrap_err().to_string();
        assert!(skew.contains("1 to 7") && skew.contains("8 to 9"), "{skew}");
        let epoch = check_hello(HERE, times(), &Hello { versions: (1, 8), ..hello }).unwrap_err().to_string();
        assert!(epoch.contains("0000000000000003") && epoch.contains("0000000000000bad"), "{epoch}");
    }
}
