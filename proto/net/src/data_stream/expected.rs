use std::fmt;
use std::sync::Arc;

use mc_types::{DEFAULT_TENANT, Role, SpiffeId};

use crate::tls::Server;

/// Store that a connection must lead to. With TLS the store shows a certificate for its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpectedStore {
    /// Name that the certificate must cover.
    pub name: Arc<str>,
    /// Tenant whose memory the store is, empty for the default tenant. The certificate must then be that of a writer of the tenant.
    /// `None`: a common store, with the certificate of a store.
    pub tenant: Option<Arc<str>>,
}

impl ExpectedStore {
    /// Kind of process that it is.
    pub(super) fn server(&self) -> Server {
        match self.tenant {
            None => Server::Store,
            Some(_) => Server::OwnStore,
        }
    }

    /// Whether it may show the certificate of `id`.
    pub(super) fn may_show(&self, id: &SpiffeId) -> bool {
        let has_role = match &self.tenant {
            None => *id.role() == Role::Store,
            Some(tenant) => id.writes_for() == Some(tenant),
        };
        has_role && id.covers(&self.name)
    }
}

impl fmt::Display for ExpectedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenant.as_deref() {
            None => f.write_str(&self.name),
            Some(tenant) => {
                let tenant = if tenant.is_empty() { DEFAULT_TENANT } else { tenant };
                write!(f, "{} of tenant {tenant}", self.name)
            }
        }
    }
}
