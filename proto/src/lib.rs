//! The gRPC services of mc and their error codes, generated from `proto/mc/v1/*.proto`.
//!
//! Both sides refuse a message of more than [`MAX_FIELDS`] items and other fields before they decode it.
//!
//! [`v1`] holds the messages, the clients and the servers, and [`Procedure`] lists the calls. [`VERSIONS`] is the range of
//! protocol versions that this build speaks. Both ends show their ranges when they connect; without a common version the error names both.

#[cfg_attr(
    not(any(feature = "client", feature = "server")),
    allow(dead_code, reason = "only generated services use it")
)]
mod codec;
mod convert;
#[cfg(feature = "client")]
mod prepared;
mod procedure;
mod status;

pub use codec::MAX_FIELDS;
#[cfg(feature = "client")]
pub use prepared::{AddressedRequest, PreparedRequest, call};
pub use procedure::Procedure;
pub use status::{detail_of, reason_of, status_of};

/// Generated from `mc/v1/master.proto` and `mc/v1/raft.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod v1 {
    include!("../generated/mc.v1.rs");
}

/// Protocol versions that this build speaks, lowest and highest.
///
/// From version 2 on, stores give receipts for what was written, and clients pass them on when they end a put. From version
/// [`GRANT_PROOFS_SINCE`] on, clients read all formats of grants, and prove that they hold those that need it.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// First version of clients that prove that they hold grants.
pub const GRANT_PROOFS_SINCE: u32 = 3;

/// Versions of the messages between masters that this build takes. It sends the highest: a master that does not take it cannot
/// be in one cluster with this build.
pub const RAFT_VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// Returns the highest version that both ranges contain, or `None` if they do not overlap.
#[must_use]
pub fn common_version(
    ours: std::ops::RangeInclusive<u32>,
    theirs: std::ops::RangeInclusive<u32>,
) -> Option<u32> {
    let highest = *ours.end().min(theirs.end());
    (highest >= *ours.start() && highest >= *theirs.start()).then_some(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_meet_at_the_highest_common_one() {
        assert_eq!(common_version(1..=3, 2..=5), Some(3));
        assert_eq!(common_version(1..=1, 2..=5), None);
        assert_eq!(
            common_version(4..=5, 0..=0),
            None,
            "an absent version (zero) is skew, not the oldest version"
        );
    }
}
