use std::fmt;
use std::str::FromStr;

/// Context of the hashes by which identities are numbered. Nothing else is hashed with it.
const NUMBERS: &str = "mc 2026-11 numbers of identities";
/// Longest trust domain, tenant or name in bytes.
const LONGEST: usize = 255;

/// Identity of a process or a user: a URI in its certificate (a SPIFFE id).
///
/// - `spiffe://TRUST/mc/master/NAME`, and `store`, `admin`, `operator` and `observer` in the place of `master`
/// - `spiffe://TRUST/mc/tenant/TENANT/rw/NAME`, and `ro` for a tenant's user that only reads
///
/// TRUST is the trust domain: lower-case letters, digits, dots, dashes and underscores. TENANT and NAME have letters, digits,
/// dots, dashes and underscores; the tenant `default` is the one without a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpiffeId {
    trust: String,
    role: Role,
    name: String,
}

/// Role in a [`SpiffeId`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A master.
    Master,
    /// A store.
    Store,
    /// A person or tool that may do everything.
    Admin,
    /// A person or tool that manages members, settings, quotas and stores. It can neither read objects nor change rights.
    Operator,
    /// A person or tool that looks at the state of the pool, and at no objects.
    Observer,
    /// A user of one tenant.
    Tenant {
        /// Name of the tenant; empty for the default tenant.
        tenant: String,
        /// Its rights there.
        access: TenantAccess,
    },
}

/// Rights of a user on the objects of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TenantAccess {
    /// Reads and lists objects.
    Read,
    /// Reads, lists, puts and removes objects.
    Write,
}

/// A text that is not an identity, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an identity ({why}): write spiffe://TRUST/mc/ROLE/NAME, with the role master, store, admin, operator, \
     observer or tenant/TENANT/rw (ro to read only)"
)]
pub struct ParseSpiffeError {
    text: String,
    why: &'static str,
}

/// The tenant without a name, as identities and Mooncake write it.
pub const DEFAULT_TENANT: &str = "default";

impl SpiffeId {
    /// Makes an identity.
    ///
    /// # Errors
    /// [`ParseSpiffeError`] when a part has characters that it may not have, is empty or too long.
    pub fn new(trust: &str, role: Role, name: &str) -> Result<Self, ParseSpiffeError> {
        Self { trust: trust.to_owned(), role, name: name.to_owned() }.to_string().parse()
    }

    /// Reads an identity of the trust domain `trust` that is written without it, as `store/kv` or `tenant/a/ro/engine`.
    ///
    /// # Errors
    /// [`ParseSpiffeError`]
    pub fn of_path(trust: &str, path: &str) -> Result<Self, ParseSpiffeError> {
        format!("spiffe://{trust}/mc/{path}").parse()
    }

    /// Returns the identity without its trust domain: role and name.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.role, self.name)
    }

    /// Returns the number of the identity with this role and name, whatever its trust domain: 63 bits of a hash. It differs from the
    /// numbers of all tokens, which are indexes of log entries.
    #[must_use]
    pub fn number_of_path(path: &str) -> u64 {
        let hash = blake3::derive_key(NUMBERS, path.as_bytes());
        u64::from_be_bytes(std::array::from_fn(|at| hash[at])) | 1 << 63
    }

    /// Trust domain: processes of another one are strangers.
    #[must_use]
    pub fn trust(&self) -> &str {
        &self.trust
    }

    /// Role.
    #[must_use]
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Tenant that it reads and writes objects of, empty for the default tenant; `None` for other roles.
    #[must_use]
    pub fn writes_for(&self) -> Option<&str> {
        match &self.role {
            Role::Tenant { tenant, access: TenantAccess::Write } => Some(tenant),
            _ => None,
        }
    }

    /// Name within its role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a process that is called `name` may use the identity: it has this name, or this name and an ordinal, as the pods
    /// of a set have (`kv` covers `kv-0`, `kv-17`).
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        name.strip_prefix(self.name.as_str()).is_some_and(|rest| {
            rest.is_empty()
                || rest
                    .strip_prefix('-')
                    .is_some_and(|nth| !nth.is_empty() && nth.bytes().all(|digit| digit.is_ascii_digit()))
        })
    }
}

impl FromStr for SpiffeId {
    type Err = ParseSpiffeError;

    fn from_str(text: &str) -> Result<Self, ParseSpiffeError> {
        let fail = |why| ParseSpiffeError { text: text.chars().take(2 * LONGEST).collect(), why };
        let rest = text.strip_prefix("spiffe://").ok_or_else(|| fail("it does not begin with spiffe://"))?;
        let mut parts = rest.split('/');
        let trust = parts.next().filter(|trust| is_trust_domain(trust));
        let trust = trust.ok_or_else(|| fail("the trust domain is missing or has other characters"))?;
        if parts.next() != Some("mc") {
            return Err(fail("the path does not begin with /mc/"));
        }
        let parts: Vec<&str> = parts.collect();
        if !parts.iter().all(|part| is_segment(part)) {
            return Err(fail("a part of the path is empty, too long, or has other characters"));
        }
        let (role, name) = match parts[..] {
            ["master", name] => (Role::Master, name),
            ["store", name] => (Role::Store, name),
            ["admin", name] => (Role::Admin, name),
            ["operator", name] => (Role::Operator, name),
            ["observer", name] => (Role::Observer, name),
            ["tenant", tenant, access, name] => {
                let access = match access {
                    "rw" => TenantAccess::Write,
                    "ro" => TenantAccess::Read,
                    _ => return Err(fail("a tenant's user has rw or ro")),
                };
                let tenant = if tenant == DEFAULT_TENANT { "" } else { tenant };
                (Role::Tenant { tenant: tenant.to_owned(), access }, name)
            }
            _ => return Err(fail("the role is unknown, or the name is missing")),
        };
        Ok(Self { trust: trust.to_owned(), role, name: name.to_owned() })
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust, role, name } = self;
        write!(f, "spiffe://{trust}/mc/{role}/{name}")
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master => f.write_str("master"),
            Self::Store => f.write_str("store"),
            Self::Admin => f.write_str("admin"),
            Self::Operator => f.write_str("operator"),
            Self::Observer => f.write_str("observer"),
            Self::Tenant { tenant, access } => {
                let tenant = if tenant.is_empty() { DEFAULT_TENANT } else { tenant };
                let access = match access {
                    TenantAccess::Read => "ro",
                    TenantAccess::Write => "rw",
                };
                write!(f, "tenant/{tenant}/{access}")
            }
        }
    }
}

fn is_trust_domain(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
}

/// Whether it can be a part of a path (SPIFFE-ID, section 2.2). Dots alone would be a way through a folder.
fn is_segment(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> SpiffeId {
        text.parse().unwrap()
    }

    #[test]
    fn each_role_is_written_as_it_is_read() {
        for text in [
            "spiffe://prod.example/mc/master/m1",
            "spiffe://prod/mc/store/kv_0.a-b",
            "spiffe://p/mc/admin/root",
            "spiffe://p/mc/operator/oncall",
            "spiffe://p/mc/observer/grafana",
            "spiffe://p/mc/tenant/team-a/rw/engine",
            "spiffe://p/mc/tenant/default/ro/engine",
        ] {
            let id = parsed(text);
            assert_eq!(id.to_string(), text);
            assert_eq!(SpiffeId::of_path(id.trust(), &id.path()), Ok(id));
        }
        let reader = parsed("spiffe://p/mc/tenant/default/ro/engine");
        let role = Role::Tenant { tenant: String::new(), access: TenantAccess::Read };
        assert_eq!((reader.trust(), reader.role(), reader.name()), ("p", &role, "engine"));
        assert_eq!(SpiffeId::new("p", role, "engine"), Ok(reader));
    }

    #[test]
    fn only_a_writer_of_a_tenant_writes_for_it() {
        for (text, tenant) in [
            ("spiffe://p/mc/tenant/a/rw/e", Some("a")),
            ("spiffe://p/mc/tenant/default/rw/e", Some("")),
            ("spiffe://p/mc/tenant/a/ro/e", None),
            ("spiffe://p/mc/store/a", None),
            ("spiffe://p/mc/admin/a", None),
        ] {
            assert_eq!(parsed(text).writes_for(), tenant, "{text}");
        }
    }

    #[test]
    fn what_is_no_identity_is_refused_with_the_reason() {
        for (text, why) in [
            ("https://p/mc/master/a", "begin with spiffe"),
            ("spiffe:///mc/master/a", "trust domain"),
            ("spiffe://P/mc/master/a", "trust domain"),
            ("spiffe://p", "begin with /mc/"),
            ("spiffe://p/ns/prod/sa/x", "begin with /mc/"),
            ("spiffe://p/mc/master", "role is unknown"),
            ("spiffe://p/mc/root/a", "role is unknown"),
            ("spiffe://p/mc/master/a/b", "role is unknown"),
            ("spiffe://p/mc/master/", "a part of the path"),
            ("spiffe://p/mc/master/..", "a part of the path"),
            ("spiffe://p/mc/store/a%2Fb", "a part of the path"),
            ("spiffe://p/mc/tenant/t/x/a", "rw or ro"),
            ("spiffe://p/mc/tenant/t/a", "role is unknown"),
        ] {
            let error = text.parse::<SpiffeId>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let long = format!("spiffe://p/mc/master/{}", "a".repeat(LONGEST + 1));
        assert!(long.parse::<SpiffeId>().is_err());
        assert!(SpiffeId::new("p", Role::Master, "a/b").is_err());
    }

    /// Masters and stores of different builds compare numbers.
    #[test]
    fn an_identity_has_the_same_number_in_every_build() {
        assert_eq!(SpiffeId::number_of_path("tenant/a/rw/engine"), 16_049_902_227_422_989_670);
        assert_ne!(
            SpiffeId::number_of_path("tenant/a/rw/engine"),
            SpiffeId::number_of_path("tenant/a/ro/engine")
        );
    }

    #[test]
    fn a_name_covers_itself_and_its_ordinals() {
        let id = parsed("spiffe://p/mc/store/kv");
        assert!(["kv", "kv-0", "kv-17"].iter().all(|name| id.covers(name)));
        assert!(!["k", "kv-", "kv-a", "kv0", "kv-0-1", "kvx", ""].iter().any(|name| id.covers(name)));
    }
}
