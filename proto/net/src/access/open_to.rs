use std::fmt;

use mc_types::{Role, TenantAccess};

/// Kind of an identity, by which calls are open to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// A master.
    Master,
    /// A store.
    Store,
    /// A person or tool that may do everything.
    Admin,
    /// A person or tool that runs the pool.
    Operator,
    /// A person or tool that looks at the state of the pool.
    Observer,
    /// A user of a tenant that reads and writes.
    Writer,
    /// A user of a tenant that only reads.
    Reader,
}

impl From<&Role> for RoleKind {
    fn from(role: &Role) -> Self {
        match role {
            Role::Master => Self::Master,
            Role::Store => Self::Store,
            Role::Admin => Self::Admin,
            Role::Operator => Self::Operator,
            Role::Observer => Self::Observer,
            Role::Tenant { access: TenantAccess::Write, .. } => Self::Writer,
            Role::Tenant { access: TenantAccess::Read, .. } => Self::Reader,
        }
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Master => "master",
            Self::Store => "store",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Observer => "observer",
            Self::Writer => "tenant rw",
            Self::Reader => "tenant ro",
        })
    }
}

/// Callers that a call is open to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenTo {
    /// Everyone, with TLS or without.
    Anyone,
    /// Identities of these roles. Where TLS is not required, also callers that have none.
    Roles(&'static [RoleKind]),
    /// Identities of these roles alone, whether TLS is required or not.
    Proven(&'static [RoleKind]),
}

impl OpenTo {
    /// Admins alone.
    pub const ADMINS: Self = Self::Roles(&[RoleKind::Admin]);
    /// Masters alone: all calls of the Raft port.
    pub const MASTERS: Self = Self::Roles(&[RoleKind::Master]);

    /// Whether identities of a role may make the call.
    #[must_use]
    pub fn includes(self, role: RoleKind) -> bool {
        match self {
            Self::Anyone => true,
            Self::Roles(roles) | Self::Proven(roles) => roles.contains(&role),
        }
    }
}

impl fmt::Display for OpenTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Roles(roles) | Self::Proven(roles)) = self else { return f.write_str("anyone") };
        for (at, role) in roles.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{role}")?;
        }
        Ok(())
    }
}
