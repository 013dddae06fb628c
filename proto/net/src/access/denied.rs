use std::sync::Arc;

use mc_types::SpiffeId;
use tonic::Status;

use super::open_to::OpenTo;

/// Longest part of a request in an error text.
const SHOWN: usize = 100;

/// Why a call is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The caller uses no TLS, which is required.
    #[error(
        "{call}: this cluster requires TLS: name the folder with your certificates by --tls-dir or MC_TLS_DIR"
    )]
    Plain {
        /// The call.
        call: String,
    },
    /// The caller uses TLS and has shown no identity.
    #[error(
        "{call}: this cluster requires a certificate with an identity of mc, and the caller has shown none: name the \
         folder with your tls.crt and tls.key by --tls-dir or MC_TLS_DIR"
    )]
    Anonymous {
        /// The call.
        call: String,
    },
    /// The caller has proven no identity, and the call needs one even where TLS is not required.
    #[error(
        "{call}: the caller must prove its identity for this call even where TLS is not required: give masters certificates \
         (`mcctl cert`), and call with that of an admin"
    )]
    Unproven {
        /// The call.
        call: String,
    },
    /// The caller's identity is of another trust domain.
    #[error(
        "{call}: {id} is of the trust domain {}, and this cluster of {ours}: name the folder with certificates of this \
         cluster by --tls-dir or MC_TLS_DIR", id.trust()
    )]
    Foreign {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
        /// Trust domain of this process.
        ours: String,
    },
    /// The call is not open to the caller's role.
    #[error("{id} may not call {call}: it is open to the roles {open_to}")]
    Role {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
        /// Roles that may make the call.
        open_to: OpenTo,
    },
    /// The request of a tenant's user names another tenant.
    #[error(
        "{id} may use its own tenant alone, and the request names the tenant `{named}`: name no tenant, or take a \
         certificate of that one"
    )]
    Tenant {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
        /// The tenant in the request.
        named: String,
    },
    /// The caller has sent a token without TLS.
    #[error(
        "{call}: the token came in the clear, so others may have it: replace it by `mcctl principals token`, and send \
         tokens by TLS alone"
    )]
    TokenInClear {
        /// The call.
        call: String,
    },
    /// The caller's token is not known.
    #[error(
        "{call}: the caller's token is not known here: it was replaced or revoked, is of another cluster, or was sent to a \
         process other than a master; `mcctl principals token` gives a new one"
    )]
    Token {
        /// The call.
        call: String,
    },
    /// The principal has expired.
    #[error("{id} has expired: an admin gives it more time by `mcctl principals add --expires`")]
    Expired {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
    },
    /// The principal is denied.
    #[error("{id} is denied: an admin ran `mcctl principals deny`, and `mcctl principals allow` ends it")]
    ShutOut {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
    },
    /// A store calls for a store that its identity does not cover.
    #[error(
        "{id} may speak for stores named `{}` or `{}-NUMBER`, and not for the store `{named}`: give that one --name, or a \
         certificate with its name", id.name(), id.name()
    )]
    StoreName {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
        /// Name of the store that it calls for.
        named: String,
    },
    /// A tenant's user calls for a store that is not the memory of its tenant.
    #[error(
        "{id} may speak for stores of its own tenant alone, and the store `{named}`, which has this id, is none: start yours with \
         a --data-dir of its own"
    )]
    StoreOwner {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
        /// Name of the store that it calls for.
        named: String,
    },
    /// A tenant's user mounts a store by a token.
    #[error(
        "{id} has shown a token, and a store of one tenant needs a certificate: clients know the store by that. Give it one by \
         `mcctl cert issue`"
    )]
    StoreToken {
        /// The call.
        call: String,
        /// The caller's identity.
        id: Arc<SpiffeId>,
    },
}

/// Kind of a [`Denied`], by which denials are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// No TLS.
    Plain,
    /// No identity.
    Anonymous,
    /// Identity of another trust domain.
    TrustDomain,
    /// A role that the call is not open to.
    Role,
    /// Another tenant.
    Tenant,
    /// A store of another name or tenant.
    StoreName,
    /// A token that is not known, came in the clear, or is not enough.
    Token,
    /// A principal that has expired.
    Expired,
    /// A principal that is denied.
    ShutOut,
}

impl DenialReason {
    /// All reasons with their names in metrics; each stands at its own number.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Plain, "plain"),
        (Self::Anonymous, "anonymous"),
        (Self::TrustDomain, "trust_domain"),
        (Self::Role, "role"),
        (Self::Tenant, "tenant"),
        (Self::StoreName, "store_name"),
        (Self::Token, "token"),
        (Self::Expired, "expired"),
        (Self::ShutOut, "shut_out"),
    ];
}

impl Denied {
    /// Denial of a request that names another tenant.
    #[must_use]
    pub fn tenant(call: &str, id: &SpiffeId, named: &str) -> Self {
        Self::Tenant { call: shown(call), id: Arc::new(id.clone()), named: shown(named) }
    }

    /// Denial of a call for a store of another name.
    #[must_use]
    pub fn store_name(call: &str, id: &SpiffeId, named: &str) -> Self {
        Self::StoreName { call: shown(call), id: Arc::new(id.clone()), named: shown(named) }
    }

    /// Denial of a call for a store that is not the memory of the caller's tenant.
    #[must_use]
    pub fn store_owner(call: &str, id: &SpiffeId, named: &str) -> Self {
        Self::StoreOwner { call: shown(call), id: Arc::new(id.clone()), named: shown(named) }
    }

    /// Denial of a tenant's mount by a token.
    #[must_use]
    pub fn store_token(call: &str, id: &SpiffeId) -> Self {
        Self::StoreToken { call: shown(call), id: Arc::new(id.clone()) }
    }

    /// Whether the caller has shown no identity of this trust domain: with one the call may be permitted.
    #[must_use]
    pub fn lacks_identity(&self) -> bool {
        matches!(
            self,
            Self::Plain { .. }
                | Self::Anonymous { .. }
                | Self::Unproven { .. }
                | Self::Foreign { .. }
                | Self::TokenInClear { .. }
                | Self::Token { .. }
        )
    }

    /// The caller's identity, if it has shown one.
    #[must_use]
    pub fn id(&self) -> Option<&SpiffeId> {
        match self {
            Self::Foreign { id, .. }
            | Self::Role { id, .. }
            | Self::Tenant { id, .. }
            | Self::Expired { id, .. }
            | Self::ShutOut { id, .. }
            | Self::StoreName { id, .. }
            | Self::StoreOwner { id, .. }
            | Self::StoreToken { id, .. } => Some(id),
            Self::Plain { .. }
            | Self::Anonymous { .. }
            | Self::Unproven { .. }
            | Self::TokenInClear { .. }
            | Self::Token { .. } => None,
        }
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> &str {
        match self {
            Self::Plain { call }
            | Self::Anonymous { call }
            | Self::Unproven { call }
            | Self::Foreign { call, .. }
            | Self::Role { call, .. }
            | Self::TokenInClear { call }
            | Self::Token { call }
            | Self::Tenant { call, .. }
            | Self::Expired { call, .. }
            | Self::ShutOut { call, .. }
            | Self::StoreName { call, .. }
            | Self::StoreOwner { call, .. }
            | Self::StoreToken { call, .. } => call,
        }
    }

    /// The tenant that the request names, where that is the reason.
    #[must_use]
    pub fn named_tenant(&self) -> Option<&str> {
        if let Self::Tenant { named, .. } = self { Some(named) } else { None }
    }

    /// Kind of the denial.
    #[must_use]
    pub fn reason(&self) -> DenialReason {
        match self {
            Self::Plain { .. } => DenialReason::Plain,
            Self::Anonymous { .. } | Self::Unproven { .. } => DenialReason::Anonymous,
            Self::Foreign { .. } => DenialReason::TrustDomain,
            Self::Role { .. } => DenialReason::Role,
            Self::Tenant { .. } => DenialReason::Tenant,
            Self::StoreName { .. } | Self::StoreOwner { .. } => DenialReason::StoreName,
            Self::TokenInClear { .. } | Self::Token { .. } | Self::StoreToken { .. } => DenialReason::Token,
            Self::Expired { .. } => DenialReason::Expired,
            Self::ShutOut { .. } => DenialReason::ShutOut,
        }
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        let text = denied.to_string();
        if denied.lacks_identity() { Self::unauthenticated(text) } else { Self::permission_denied(text) }
    }
}

/// Returns the beginning of a part of a request, fit for a line of a log.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_stands_at_its_own_number() {
        for (at, (reason, _)) in DenialReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }

    #[test]
    fn a_text_names_both_sides_and_nothing_long_or_unprintable() {
        let id: SpiffeId = "spiffe://prod/mc/tenant/a/rw/engine".parse().unwrap();
        let text = Denied::tenant("BatchGet", &id, "b").to_string();
        assert!(text.contains("prod/mc/tenant/a/rw/engine may") && text.contains("`b`"), "{text}");
        let text = Denied::tenant("BatchGet", &id, &("b\n".to_owned() + &"x".repeat(1 << 20))).to_string();
        assert!(text.len() < 400 && text.contains("`b\\nxx"), "{text}");
    }
}
