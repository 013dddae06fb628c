//! Checks whether a request may be served: decisions over values, no I/O.

use mc_net::Peer;
use mc_types::{
    Access, ClusterId, ClusterTime, Grant, GrantError, GrantedRange, SegmentEpoch, StoreId, TlsLevel,
};

use crate::DataEncryption;
use crate::authority::{Authority, Times};
use crate::control::wire::{self, Hello, Op, Status};
use crate::fence::Fenced;

/// The store and epoch whose memory the server serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryId {
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
}

/// Grants that count on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantsTaken {
    All,
    /// Those that need proofs: the peer has shown no identity.
    WithProofs,
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
    #[error("{id} is denied: an admin ran `mcctl principals deny`, and `mcctl principals allow` ends it")]
    ShutOut { id: String },
    #[error("the holder of the grant was denied, or its token was replaced: `mcctl whoami` says more")]
    Revoked,
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
        "this store takes those grants alone that masters give over TLS from clients that show no identity: give the client the \
         folder with its certificates, by --tls-dir or MC_TLS_DIR"
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
    /// The process that this one follows may have sealed the range. Its seals are not known any more, and what they made visible must
    /// not change.
    #[error("the put of allocation {index} began before this store was restarted: put it again")]
    BeforeRestart { index: u64 },
    #[error(
        "the transfer was cut off, because another range of its batch belongs to a newer write: try again"
    )]
    CutOff,
    #[error(
        "this user may map no store's memory: an admin allows it by `mcctl principals set NAME --shared-memory on`"
    )]
    NotShared,
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
            | Self::ShutOut { .. } => Status::Identity,
            Self::NotReady => Status::NotReady,
            Self::Grant(_)
            | Self::Revoked
            | Self::NoProof
            | Self::WrongProof
            | Self::Repeated { .. }
            | Self::NotShared
            | Self::Access { .. } => Status::Grant,
            Self::Expired { .. } | Self::Fenced(Fenced::Forgotten) => Status::Expired,
            Self::Fenced(Fenced::Superseded { .. } | Fenced::Ended { .. }) | Self::BeforeRestart { .. } => {
                Status::Superseded
            }
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

/// Checks that a peer may use a store of the trust domain `ours`, which insists on TLS as far as `level` says, and returns the grants
/// that count from it.
///
/// Grants decide what a peer may do. At `require`, one without an identity of ours uses only those that need proofs.
pub(crate) fn check_peer(
    level: TlsLevel,
    data_encryption: DataEncryption,
    (ours, authority): (Option<&str>, &Authority),
    peer: &Peer,
) -> Result<GrantsTaken, Refusal> {
    match peer {
        Peer::Named(id) if ours == Some(id.trust()) => match authority.has_shut_out_identity(&id.path()) {
            true => Err(Refusal::ShutOut { id: id.to_string() }),
            false => Ok(GrantsTaken::All),
        },
        _ if level < TlsLevel::Require => Ok(GrantsTaken::All),
        Peer::Plain if data_encryption == DataEncryption::On => Err(Refusal::Plain),
        Peer::Plain | Peer::Anonymous | Peer::Other(_) | Peer::Named(_) => Ok(GrantsTaken::WithProofs),
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
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use mc_types::{Clock, SpiffeId};

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
            holder: None,
            needs_proof: false,
            shares_memory: false,
            avoids_rdma: false,
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
    fn a_store_that_requires_tls_serves_those_who_use_it_and_are_not_shut_out() {
        let named = |trust: &str| Peer::Named(Arc::new(SpiffeId::of_path(trust, "tenant/t/ro/a").unwrap()));
        let (ours, foreign) = (named("here"), named("there"));
        let other = Peer::Other("spiffe://there/sa/a".into());
        let authority = Authority::new(Clock::from_fn(|| Duration::ZERO));
        let taken = |level, encryption, peer: &Peer| {
            check_peer(level, encryption, (Some("here"), &authority), peer).map_err(|why| why.to_string())
        };
        let (on, off) = (DataEncryption::On, DataEncryption::Off);
        for level in [TlsLevel::Allow, TlsLevel::Prefer] {
            for peer in [&Peer::Plain, &Peer::Anonymous, &other, &foreign, &ours] {
                assert_eq!(taken(level, on, peer), Ok(GrantsTaken::All), "{peer:?} at {level}");
            }
        }
        assert!(taken(TlsLevel::Require, on, &Peer::Plain).unwrap_err().contains("--tls-dir"));
        assert_eq!(taken(TlsLevel::Require, off, &Peer::Plain), Ok(GrantsTaken::WithProofs));
        for peer in [&Peer::Anonymous, &other, &foreign] {
            assert_eq!(taken(TlsLevel::Require, on, peer), Ok(GrantsTaken::WithProofs), "{peer:?}");
        }
        assert_eq!(taken(TlsLevel::Require, on, &ours), Ok(GrantsTaken::All));

        authority.shut_out(BTreeSet::from([SpiffeId::number_of_path("tenant/t/ro/a")]));
        for level in TlsLevel::ALL {
            let why = taken(level, off, &ours).unwrap_err();
            assert!(why.contains("spiffe://here/mc/tenant/t/ro/a is denied"), "{why}");
        }
        assert!(taken(TlsLevel::Require, on, &foreign).is_ok(), "it is somebody else");
        authority.shut_out(BTreeSet::new());
        assert_eq!(taken(TlsLevel::Require, on, &ours), Ok(GrantsTaken::All));
    }

    #[test]
    fn refusals_name_both_sides() {
        let hello =
            Hello { versions: (9, 10), cluster: ClusterId(1), store: StoreId(2), epoch: SegmentEpoch(0xbad) };
        let skew = check_hello(HERE, times(), &hello).unwrap_err().to_string();
        assert!(skew.contains("1 to 8") && skew.contains("9 to 10"), "{skew}");
        let epoch = check_hello(HERE, times(), &Hello { versions: (1, 8), ..hello }).unwrap_err().to_string();
        assert!(epoch.contains("0000000000000003") && epoch.contains("0000000000000bad"), "{epoch}");
    }
}
