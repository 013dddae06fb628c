//! Changes of the access settings.

use mc_types::{TlsLevel, TokenHash};
use serde::{Deserialize, Serialize};

/// Cluster version from which entries may change the access settings.
pub const SECURITY_SINCE: u32 = 3;

/// One change of the access settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityChange {
    /// Set how far processes with certificates insist on TLS.
    Level(TlsLevel),
    /// Set the record of a principal, or remove it.
    Principal {
        /// Its identity without the trust domain, as `tenant/a/rw/engine`.
        name: String,
        /// The new record; `None` to remove it.
        principal: Option<PrincipalRecord>,
    },
    /// Set the most calls a second of a tenant's users, or remove that limit.
    Calls {
        /// The tenant; empty is the default one.
        tenant: String,
        /// The limit, at least 1; `None` for no limit.
        per_second: Option<u32>,
    },
    /// Set the record of a principal, and whether it may map the memory of stores on its host. [`Self::Principal`] leaves the latter as
    /// it is.
    SharingPrincipal {
        /// Its identity without the trust domain.
        name: String,
        /// The new record.
        principal: PrincipalRecord,
        /// Whether it may.
        shares_memory: bool,
    },
    /// Set whether bytes of a tenant may go by RDMA, which does not encrypt them. They may until then.
    Rdma {
        /// The tenant; empty is the default one.
        tenant: String,
        /// Whether they may.
        allowed: bool,
    },
}

/// Record of a principal: other credentials than its certificate, its end, and whether it is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalRecord {
    /// Hash of its token; `None` for one that has none.
    pub token: Option<TokenHash>,
    /// Identities in certificates of other systems that stand for it; an asterisk stands for any characters but a slash.
    pub certificates: Vec<String>,
    /// Second since 1970 from which it is refused; `None` for never. Judged by the clock of the master that it calls, never here.
    pub expires: Option<u64>,
    /// Whether it is refused, whatever it shows.
    pub denied: bool,
}
