use std::fmt;

use thiserror::Error;

/// Declares each code once: its number, its name on the wire, and its meaning.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal, $name:literal;)*) => {
        /// The result of an operation on one item, as it appears in replies and logs. The numbers up to -1,999 are
        /// those of Mooncake Store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Code {
            $($(#[$doc])* $code = $number,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// Returns the code's name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }
        }
    };
}

codes! {
    /// The operation succeeded.
    Ok = 0, "OK";
    /// The master has a defect.
    InternalError = -1, "INTERNAL_ERROR";
    /// The segment does not exist, or its store is not mounted.
    SegmentNotFound = -101, "SEGMENT_NOT_FOUND";
    /// A live store with this id is mounted from another address.
    SegmentAlreadyExists = -102, "SEGMENT_ALREADY_EXISTS";
    /// No store has space for the object.
    NoAvailableHandle = -200, "NO_AVAILABLE_HANDLE";
    /// The key is empty or longer than [`MAX_KEY_LEN`](crate::MAX_KEY_LEN).
    InvalidKey = -400, "INVALID_KEY";
    /// A parameter is out of its range.
    InvalidParams = -600, "INVALID_PARAMS";
    /// The put to revoke has ended already.
    InvalidWrite = -700, "INVALID_WRITE";
    /// Every replica is on a suspect store.
    ReplicaIsNotReady = -703, "REPLICA_IS_NOT_READY";
    /// The object does not exist.
    ObjectNotFound = -704, "OBJECT_NOT_FOUND";
    /// The object exists already.
    ObjectAlreadyExists = -705, "OBJECT_ALREADY_EXISTS";
    /// The object is being read.
    ObjectHasLease = -706, "OBJECT_HAS_LEASE";
    /// The read lease ended before the bytes arrived.
    LeaseExpired = -707, "LEASE_EXPIRED";
    /// The bytes could not be moved.
    TransferFail = -800, "TRANSFER_FAIL";
    /// The bytes are not those that were put.
    ChecksumMismatch = -801, "CHECKSUM_MISMATCH";
    /// The call failed.
    RpcFail = -900, "RPC_FAIL";
    /// The call was not answered by its deadline.
    RpcTimeout = -901, "RPC_TIMEOUT";
    /// The master cannot serve this now.
    UnavailableInCurrentStatus = -1010, "UNAVAILABLE_IN_CURRENT_STATUS";
    /// This build does not have the operation.
    NotSupported = -1012, "NOT_SUPPORTED";
    /// The put would take its tenant beyond its quota, and nothing of the tenant can be evicted.
    TenantQuotaExceeded = -1700, "TENANT_QUOTA_EXCEEDED";
    /// The cluster serves registered tenants only, and the tenant is none.
    TenantNotRegistered = -1701, "TENANT_NOT_REGISTERED";
    /// The tenant to be unregistered has objects or puts in flight.
    TenantNotEmpty = -1702, "TENANT_NOT_EMPTY";
    /// This master does not lead.
    NotLeader = -2001, "NOT_LEADER";
    /// The put id is unknown: the put ended at its deadline, was revoked, or never started here.
    PutGone = -2002, "PUT_GONE";
    /// The call is for another cluster.
    WrongCluster = -2003, "WRONG_CLUSTER";
    /// The call is for another master.
    WrongNode = -2004, "WRONG_NODE";
    /// The two ends speak different versions.
    VersionSkew = -2005, "VERSION_SKEW";
    /// Too many proposals are in flight: slow down and try again.
    ResourceExhausted = -2006, "RESOURCE_EXHAUSTED";
    /// The store's epoch was unmounted or has expired: allocate and mount again.
    StoreEpochDead = -2007, "STORE_EPOCH_DEAD";
    /// The object is larger than the largest segment.
    ObjectTooLarge = -2008, "OBJECT_TOO_LARGE";
    /// The object's version is no longer the one that the call named.
    VersionChanged = -2009, "VERSION_CHANGED";
    /// No leader was reachable.
    NoLeader = -2010, "NO_LEADER";
    /// The operation was proposed, and leadership was lost before its outcome was known.
    OutcomeUnknown = -2011, "OUTCOME_UNKNOWN";
    /// The leader starts no puts until its data directory has room again.
    DiskNearlyFull = -2012, "DISK_NEARLY_FULL";
    /// The group has [`MAX_GROUP_MEMBERS`](crate::MAX_GROUP_MEMBERS) members.
    GroupFull = -2013, "GROUP_FULL";
    /// No store of the put has proven that it wrote the bytes.
    NotProven = -2014, "NOT_PROVEN";
    /// The call needs TLS and a certificate of the cluster.
    Unauthenticated = -2015, "UNAUTHENTICATED";
    /// The caller's certificate does not permit the call.
    PermissionDenied = -2016, "PERMISSION_DENIED";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A number that is no code of this build; the other end is a newer build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is no result code of this build")]
pub struct UnknownCode(pub i32);

impl TryFrom<i32> for Code {
    type Error = UnknownCode;

    fn try_from(number: i32) -> Result<Self, UnknownCode> {
        Self::ALL.iter().copied().find(|code| *code as i32 == number).ok_or(UnknownCode(number))
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        code as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_number_and_back() {
        for code in Code::ALL {
            assert_eq!(Code::try_from(i32::from(*code)), Ok(*code));
        }
        assert_eq!(Code::try_from(1), Err(UnknownCode(1)));
        assert_eq!(Code::NoLeader.to_string(), "NO_LEADER");
    }
}
