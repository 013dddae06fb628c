use std::sync::Arc;

use mc_types::{Role, SpiffeId, TlsLevel};

use super::denied::{Denied, shown};
use super::open_to::{OpenTo, RoleKind};
use crate::tls::Peer;

/// Demands of a process with certificates on its callers.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'a> {
    /// How far it insists on TLS.
    pub level: TlsLevel,
    /// Its own trust domain; identities of another one are those of strangers.
    pub trust: &'a str,
}

/// Caller of a port, as far as its rights depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A caller without an identity where none is required: it may do all.
    Open,
    /// A caller that has proven an identity of our trust domain, and is held to its role.
    Named {
        /// Its identity.
        id: Arc<SpiffeId>,
        /// Number of the token by which it has proven that; `None` for a certificate.
        token: Option<u64>,
        /// Whether its record lets it map the memory of stores on its host.
        shares_memory: bool,
    },
    /// A caller without an identity that counts here, where one is required.
    Stranger(Stranger),
}

/// Why a caller has no identity that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It uses no TLS.
    Plain,
    /// It has shown no identity.
    Anonymous,
    /// Its identity is of another trust domain.
    Foreign {
        /// Its identity.
        id: Arc<SpiffeId>,
        /// Trust domain of this process.
        ours: String,
    },
}

impl Principal {
    /// Returns the caller at the other end of a connection; `demands` are `None` in a process without certificates.
    #[must_use]
    pub fn of(peer: &Peer, demands: Option<Demands<'_>>) -> Self {
        let Some(Demands { level, trust }) = demands else { return Self::Open };
        match peer {
            Peer::Named(id) if id.trust() == trust => {
                Self::Named { id: id.clone(), token: None, shares_memory: false }
            }
            _ if level < TlsLevel::Require => Self::Open,
            Peer::Plain => Self::Stranger(Stranger::Plain),
            Peer::Anonymous | Peer::Other(_) => Self::Stranger(Stranger::Anonymous),
            Peer::Named(id) => Self::Stranger(Stranger::Foreign { id: id.clone(), ours: trust.to_owned() }),
        }
    }

    /// Checks that the caller may make a call, which is named in the error.
    ///
    /// # Errors
    /// [`Denied`]
    pub fn may(&self, open_to: OpenTo, call: &str) -> Result<(), Denied> {
        if open_to == OpenTo::Anyone {
            return Ok(());
        }
        let call = || shown(call);
        match self {
            Self::Open if matches!(open_to, OpenTo::Proven(_)) => Err(Denied::Unproven { call: call() }),
            Self::Open => Ok(()),
            Self::Named { id, .. } if open_to.includes(RoleKind::from(id.role())) => Ok(()),
            Self::Named { id, .. } => Err(Denied::Role { call: call(), id: id.clone(), open_to }),
            Self::Stranger(Stranger::Plain) => Err(Denied::Plain { call: call() }),
            Self::Stranger(Stranger::Anonymous) => Err(Denied::Anonymous { call: call() }),
            Self::Stranger(Stranger::Foreign { id, ours }) => {
                Err(Denied::Foreign { call: call(), id: id.clone(), ours: ours.clone() })
            }
        }
    }

    /// Its identity, if it has proven one of our trust domain.
    #[must_use]
    pub fn id(&self) -> Option<&SpiffeId> {
        match self {
            Self::Named { id, .. } => Some(id),
            Self::Open | Self::Stranger(_) => None,
        }
    }

    /// Number that its grants carry: that of its token, else of its identity; `None` for a caller that has proven none.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Named { id, token, .. } => {
                Some(token.unwrap_or_else(|| SpiffeId::number_of_path(&id.path())))
            }
            Self::Open | Self::Stranger(_) => None,
        }
    }

    /// Whether its record lets it map the memory of stores on its host.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        matches!(self, Self::Named { shares_memory: true, .. })
    }

    /// Whether it is a user of one tenant.
    #[must_use]
    pub fn is_tenants_user(&self) -> bool {
        self.id().is_some_and(|id| matches!(id.role(), Role::Tenant { .. }))
    }

    /// Checks that the caller of `call` may speak for the store with this name, if it is a store with an identity or a tenant's user.
    ///
    /// # Errors
    /// [`Denied::StoreName`]
    pub fn may_speak_for(&self, store: &str, call: &str) -> Result<(), Denied> {
        match self.id() {
            Some(id) if matches!(id.role(), Role::Store | Role::Tenant { .. }) && !id.covers(store) => {
                Err(Denied::store_name(call, id, store))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::*;

    const REQUIRED: Demands<'_> = Demands { level: TlsLevel::Require, trust: "prod" };

    fn named(id: &str) -> Peer {
        Peer::Named(Arc::new(id.parse().unwrap()))
    }

    fn denied(peer: &Peer, open_to: OpenTo) -> (Code, String) {
        let status = Status::from(Principal::of(peer, Some(REQUIRED)).may(open_to, "SetConfig").unwrap_err());
        (status.code(), status.message().to_owned())
    }

    #[test]
    fn below_require_only_an_identity_of_ours_is_held_to_its_role() {
        let strangers = [Peer::Plain, Peer::Anonymous, named("spiffe://test/mc/store/kv")];
        let ours = named("spiffe://prod/mc/store/kv");
        for level in [TlsLevel::Allow, TlsLevel::Prefer] {
            let demands = Demands { level, ..REQUIRED };
            for peer in &strangers {
                assert_eq!(Principal::of(peer, Some(demands)), Principal::Open, "{peer:?} at {level}");
            }
            assert!(Principal::of(&ours, Some(demands)).id().is_some(), "{level}");
        }
        assert_eq!(Principal::of(&Peer::Plain, None), Principal::Open, "without certificates");
    }

    #[test]
    fn some_calls_need_an_identity_at_each_level() {
        let admins = OpenTo::Proven(&[RoleKind::Admin]);
        let text = Principal::Open.may(admins, "SetSecurity").unwrap_err().to_string();
        assert!(text.contains("SetSecurity") && text.contains("mcctl cert"), "{text}");
        for level in TlsLevel::ALL {
            let may = |id| {
                Principal::of(&named(id), Some(Demands { level, ..REQUIRED })).may(admins, "SetSecurity")
            };
            assert_eq!(may("spiffe://prod/mc/admin/a"), Ok(()), "{level}");
            assert!(may("spiffe://prod/mc/operator/a").is_err() && may("spiffe://test/mc/admin/a").is_err());
        }
    }

    #[test]
    fn a_stranger_is_told_what_it_lacks() {
        for (peer, says) in [
            (Peer::Plain, &["SetConfig", "requires TLS", "--tls-dir", "MC_TLS_DIR"][..]),
            (Peer::Anonymous, &["SetConfig", "requires a certificate", "--tls-dir"]),
            (named("spiffe://test/mc/admin/a"), &["spiffe://test/mc/admin/a", "domain test", "of prod"]),
        ] {
            let (code, text) = denied(&peer, OpenTo::ADMINS);
            assert_eq!(code, Code::Unauthenticated, "{peer:?}");
            assert!(says.iter().all(|part| text.contains(part)), "{text}");
            let anyone = Principal::of(&peer, Some(REQUIRED)).may(OpenTo::Anyone, "Hello");
            assert_eq!(anyone, Ok(()), "{peer:?}");
        }
    }

    #[test]
    fn an_identity_without_the_right_is_told_who_has_it() {
        let open_to = OpenTo::Roles(&[RoleKind::Admin, RoleKind::Writer]);
        let (code, text) = denied(&named("spiffe://prod/mc/tenant/a/ro/e"), open_to);
        assert_eq!(code, Code::PermissionDenied);
        assert_eq!(
            text,
            "spiffe://prod/mc/tenant/a/ro/e may not call SetConfig: it is open to the roles admin, tenant rw"
        );
    }

    #[test]
    fn a_store_speaks_for_the_stores_that_its_identity_covers() {
        let principal = |peer: &Peer| Principal::of(peer, Some(REQUIRED));
        for path in ["store/kv", "tenant/a/rw/kv"] {
            let store = principal(&named(&format!("spiffe://prod/mc/{path}")));
            assert_eq!(store.may_speak_for("kv-3", "Heartbeat"), Ok(()));
            let text = store.may_speak_for("other", "Heartbeat").unwrap_err().to_string();
            let says = [&format!("mc/{path} may"), "`kv-NUMBER`", "`other`"];
            assert!(says.iter().all(|part| text.contains(part)), "{text}");
        }
        assert_eq!(principal(&named("spiffe://prod/mc/admin/a")).may_speak_for("other", "Heartbeat"), Ok(()));
        assert_eq!(Principal::Open.may_speak_for("other", "Heartbeat"), Ok(()));
    }
}
