//! Access settings in the replicated state: principals, tokens, the level of TLS, limits on calls. `apply` decides nothing by them.

use std::collections::{BTreeMap, BTreeSet};

use mc_types::{ClusterTime, Code, MAX_GRANT_LIFETIME, MAX_TENANT_LEN, TlsLevel, TokenHash};
use triomphe::Arc;

use crate::command::{PrincipalRecord, SecurityChange};

/// Most principals with a record.
pub const PRINCIPALS_MAX: usize = 4096;
/// Longest name of a principal, in bytes: a role, a tenant, a name.
pub const PRINCIPAL_NAME_MAX: usize = 600;
/// Most identities of other systems that stand for one principal.
pub const PRINCIPAL_CERTIFICATES_MAX: usize = 4;
/// Longest of these, in bytes. A full table has 10 MiB then, and fits into one answer.
pub const PRINCIPAL_CERTIFICATE_MAX: usize = 512;
/// Most tenants with a limit on their calls, and most whose bytes avoid RDMA.
const TENANT_RULES_MAX: usize = 4096;
/// Time after which a token that was revoked is forgotten: what was given for it has ended.
const REVOKED_FOR: u64 = 2 * MAX_GRANT_LIFETIME.as_millis() as u64;

/// Access settings. A clone is cheap; a change after it copies the table that it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    pub(crate) revision: u64,
    pub(crate) level: Option<TlsLevel>,
    pub(crate) principals: Arc<Principals>,
    pub(crate) calls: Arc<BTreeMap<String, u32>>,
    /// Tenants whose bytes may not go by RDMA.
    pub(crate) without_rdma: Arc<BTreeSet<String>>,
}

/// Principals by their names and tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Principals {
    pub(crate) by_name: BTreeMap<String, StoredPrincipal>,
    /// Names by tokens and by identities of other systems: derived from `by_name`, as are the patterns of such identities, each
    /// with its name.
    by_token: BTreeMap<TokenHash, String>,
    by_certificate: BTreeMap<String, String>,
    patterns: BTreeSet<(String, String)>,
    /// Numbers of tokens that were revoked lately, and the time at which each is forgotten.
    pub(crate) revoked: BTreeMap<u64, ClusterTime>,
}

/// Record of a principal, and the number of its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPrincipal {
    /// The record.
    pub record: PrincipalRecord,
    /// Number of its token: the index of the entry that brought it. No other token has the same.
    pub token_number: u64,
    /// Whether it may map the memory of stores on its host.
    pub shares_memory: bool,
}

impl Security {
    /// Index of the entry that changed it last; 0 if none did.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How far processes with certificates insist on TLS; `None` until an entry has said so.
    #[must_use]
    pub fn level(&self) -> Option<TlsLevel> {
        self.level
    }

    /// Lists the principals by their names.
    pub fn principals(&self) -> impl Iterator<Item = (&str, &StoredPrincipal)> {
        self.principals.by_name.iter().map(|(name, known)| (name.as_str(), known))
    }

    /// Returns the record of a principal.
    #[must_use]
    pub fn principal(&self, name: &str) -> Option<&StoredPrincipal> {
        self.principals.by_name.get(name)
    }

    /// Returns the principal with a token.
    #[must_use]
    pub fn with_token(&self, token: &TokenHash) -> Option<(&str, &StoredPrincipal)> {
        let name = self.principals.by_token.get(token)?;
        Some((name, &self.principals.by_name[name]))
    }

    /// Returns the principal for which an identity of another system stands.
    #[must_use]
    pub fn with_certificate(&self, uri: &str) -> Option<(&str, &StoredPrincipal)> {
        let Principals { by_name, by_certificate, patterns, .. } = &*self.principals;
        // Of several patterns the one that says the most.
        let by_pattern = || {
            let covering = patterns.iter().filter(|(pattern, _)| covers(pattern, uri));
            covering.max_by_key(|(pattern, _)| pattern.find('*')).map(|(_, name)| name)
        };
        let name = by_certificate.get(uri).or_else(by_pattern)?;
        Some((name, &by_name[name]))
    }

    /// Numbers of the tokens that were revoked lately.
    pub fn revoked(&self) -> impl Iterator<Item = u64> {
        self.principals.revoked.keys().copied()
    }

    /// Most calls a second of a tenant's users; `None` for no limit.
    #[must_use]
    pub fn calls(&self, tenant: &str) -> Option<u32> {
        self.calls.get(tenant).copied()
    }

    /// Whether bytes of a tenant may not go by RDMA.
    #[must_use]
    pub fn avoids_rdma(&self, tenant: &str) -> bool {
        self.without_rdma.contains(tenant)
    }

    /// Applies the change in the entry `index`. Answers `Ok`, `InvalidParams` for what is too long or is another principal's,
    /// `ObjectNotFound` for a principal that is not known, or `NoAvailableHandle` when the table is full.
    pub(crate) fn change(&mut self, index: u64, now: ClusterTime, change: &SecurityChange) -> Code {
        let code = match change {
            SecurityChange::Level(level) => {
                self.level = Some(*level);
                Code::Ok
            }
            SecurityChange::Principal { name, principal } => {
                Arc::make_mut(&mut self.principals).set(index, now, name, principal.as_ref(), None)
            }
            SecurityChange::Calls { tenant, per_second } => {
                set_calls(Arc::make_mut(&mut self.calls), tenant, *per_second)
            }
            SecurityChange::SharingPrincipal { name, principal, shares_memory } => {
                let principals = Arc::make_mut(&mut self.principals);
                principals.set(index, now, name, Some(principal), Some(*shares_memory))
            }
            SecurityChange::Rdma { tenant, allowed } => {
                set_rdma(Arc::make_mut(&mut self.without_rdma), tenant, *allowed)
            }
        };
        if code == Code::Ok {
            self.revision = index;
        }
        code
    }
}

impl Principals {
    /// Sets a record, or removes it. `None` for `shares_memory` leaves that as it is.
    fn set(
        &mut self,
        index: u64,
        now: ClusterTime,
        name: &str,
        record: Option<&PrincipalRecord>,
        shares_memory: Option<bool>,
    ) -> Code {
        self.revoked.retain(|_, until| *until > now);
        let before = self.by_name.get(name);
        let Some(record) = record else {
            if before.is_none() {
                return Code::ObjectNotFound;
            }
            self.forget(name, None, now);
            return Code::Ok;
        };
        if before.is_none() && self.by_name.len() >= PRINCIPALS_MAX {
            return Code::NoAvailableHandle;
        }
        if !is_storable(name, record) || self.is_taken(name, record) {
            return Code::InvalidParams;
        }
        let kept = before.filter(|before| before.record.token == record.token);
        let token_number = kept.map_or(index, |kept| kept.token_number);
        let shares_memory =
            shares_memory.unwrap_or_else(|| before.is_some_and(|before| before.shares_memory));
        self.forget(name, Some(token_number), now);
        let record = record.clone();
        self.enter(name.to_owned(), StoredPrincipal { record, token_number, shares_memory });
        Code::Ok
    }

    /// Lets a principal of a snapshot map stores' memory; returns whether it is known.
    pub(crate) fn restore_sharing(&mut self, name: &str) -> bool {
        self.by_name.get_mut(name).map(|known| known.shares_memory = true).is_some()
    }

    /// Whether another principal has its token, or an identity that stands for it.
    fn is_taken(&self, name: &str, record: &PrincipalRecord) -> bool {
        let is_anothers = |holder: Option<&String>| holder.is_some_and(|holder| holder != name);
        record.token.is_some_and(|token| is_anothers(self.by_token.get(&token)))
            || record.certificates.iter().any(|uri| is_anothers(self.by_certificate.get(uri)))
            || self
                .patterns
                .iter()
                .any(|(pattern, holder)| holder != name && record.certificates.contains(pattern))
    }

    /// Takes a principal out of the tables. Its token is revoked, unless it goes on with the number `kept`.
    fn forget(&mut self, name: &str, kept: Option<u64>, now: ClusterTime) {
        let Some(before) = self.by_name.remove(name) else { return };
        if let Some(token) = &before.record.token {
            self.by_token.remove(token);
            if kept != Some(before.token_number) {
                self.revoked.insert(before.token_number, ClusterTime(now.0.saturating_add(REVOKED_FOR)));
            }
        }
        for uri in before.record.certificates {
            self.by_certificate.remove(&uri);
            self.patterns.remove(&(uri, name.to_owned()));
        }
    }

    fn enter(&mut self, name: String, known: StoredPrincipal) {
        if let Some(token) = known.record.token {
            self.by_token.insert(token, name.clone());
        }
        for uri in &known.record.certificates {
            if uri.contains('*') {
                self.patterns.insert((uri.clone(), name.clone()));
            } else {
                self.by_certificate.insert(uri.clone(), name.clone());
            }
        }
        self.by_name.insert(name, known);
    }

    /// Adds a principal of a snapshot; returns whether the table can hold it.
    pub(crate) fn restore(&mut self, name: String, known: StoredPrincipal) -> bool {
        let fits = self.by_name.len() < PRINCIPALS_MAX
            && is_storable(&name, &known.record)
            && !self.is_taken(&name, &known.record);
        if fits {
            self.enter(name, known);
        }
        fits
    }
}

/// Whether a pattern covers a URI: an asterisk stands for any characters but a slash.
fn covers(pattern: &str, uri: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = uri.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        // The first place is the best one: it leaves the most for the parts to come.
        let Some(at) = rest.find(part).filter(|at| !rest[..*at].contains('/')) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.strip_suffix(last).is_some_and(|stands_for| !stands_for.contains('/'))
}

/// Whether a principal fits into the table.
fn is_storable(name: &str, record: &PrincipalRecord) -> bool {
    (1..=PRINCIPAL_NAME_MAX).contains(&name.len())
        && record.certificates.len() <= PRINCIPAL_CERTIFICATES_MAX
        && record.certificates.iter().all(|uri| uri.len() <= PRINCIPAL_CERTIFICATE_MAX)
}

pub(crate) fn set_calls(calls: &mut BTreeMap<String, u32>, tenant: &str, per_second: Option<u32>) -> Code {
    if tenant.len() > MAX_TENANT_LEN || per_second == Some(0) {
        return Code::InvalidParams;
    }
    match per_second {
        None => drop(calls.remove(tenant)),
        Some(_) if calls.len() >= TENANT_RULES_MAX && !calls.contains_key(tenant) => {
            return Code::NoAvailableHandle;
        }
        Some(limit) => drop(calls.insert(tenant.to_owned(), limit)),
    }
    Code::Ok
}

pub(crate) fn set_rdma(without: &mut BTreeSet<String>, tenant: &str, allowed: bool) -> Code {
    if tenant.len() > MAX_TENANT_LEN {
        return Code::InvalidParams;
    }
    if !allowed && without.len() >= TENANT_RULES_MAX && !without.contains(tenant) {
        return Code::NoAvailableHandle;
    }
    if allowed {
        without.remove(tenant)
    } else {
        without.insert(tenant.to_owned())
    };
    Code::Ok
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_token(token: u8) -> PrincipalRecord {
        PrincipalRecord { token: Some(TokenHash([token; 32])), ..PrincipalRecord::default() }
    }

    fn set(security: &mut Security, index: u64, name: &str, principal: Option<PrincipalRecord>) -> Code {
        let change = SecurityChange::Principal { name: name.to_owned(), principal };
        security.change(index, ClusterTime(index * 1_000), &change)
    }

    #[test]
    fn a_token_leads_to_its_principal_until_it_is_replaced_or_forgotten() {
        let mut security = Security::default();
        let holder = |security: &Security, token| {
            security
                .with_token(&TokenHash([token; 32]))
                .map(|(name, known)| (name.to_owned(), known.token_number))
        };
        assert_eq!(set(&mut security, 1, "admin/a", Some(with_token(1))), Code::Ok);
        assert_eq!(
            set(&mut security, 2, "admin/b", Some(with_token(1))),
            Code::InvalidParams,
            "it is another's"
        );
        let denied = PrincipalRecord { denied: true, ..with_token(1) };
        assert_eq!(set(&mut security, 3, "admin/a", Some(denied)), Code::Ok);
        assert_eq!(holder(&security, 1), Some(("admin/a".to_owned(), 1)), "the token has kept its number");

        let before = security.clone();
        assert_eq!(set(&mut security, 4, "admin/a", Some(with_token(2))), Code::Ok);
        assert_eq!((holder(&security, 1), holder(&security, 2)), (None, Some(("admin/a".to_owned(), 4))));
        assert_eq!(security.revoked().collect::<Vec<_>>(), [1]);
        assert!(holder(&before, 1).is_some() && before.revoked().next().is_none(), "a copy stays as it is");
        assert_eq!(set(&mut security, 5, "admin/b", Some(with_token(1))), Code::Ok, "it is free again");

        assert_eq!(set(&mut security, 6, "admin/a", None), Code::Ok);
        assert_eq!(set(&mut security, 7, "admin/a", None), Code::ObjectNotFound);
        assert_eq!(security.revision(), 6);
        assert_eq!(security.revoked().collect::<Vec<_>>(), [1, 4]);
        let later = 7 + REVOKED_FOR / 1_000;
        assert_eq!(set(&mut security, later, "admin/b", None), Code::Ok);
        assert_eq!(security.revoked().collect::<Vec<_>>(), [5], "what was given for the others has ended");
    }

    #[test]
    fn an_identity_of_another_system_stands_for_one_principal() {
        let mut security = Security::default();
        let with = |uris: &[&str]| {
            let certificates = uris.iter().map(ToString::to_string).collect();
            Some(PrincipalRecord { certificates, ..PrincipalRecord::default() })
        };
        let holder =
            |security: &Security, uri| security.with_certificate(uri).map(|(name, _)| name.to_owned());
        assert_eq!(set(&mut security, 1, "admin/a", with(&["spiffe://o/a", "spiffe://o/ns/*/a"])), Code::Ok);
        assert_eq!(set(&mut security, 2, "admin/b", with(&["spiffe://o/a"])), Code::InvalidParams);
        assert_eq!(holder(&security, "spiffe://o/a").as_deref(), Some("admin/a"));
        assert_eq!(holder(&security, "spiffe://o/ns/x/a").as_deref(), Some("admin/a"));
        assert_eq!(holder(&security, "spiffe://o/ns/*/b"), None);
        assert_eq!(set(&mut security, 2, "admin/b", with(&["spiffe://o/ns/*/a"])), Code::InvalidParams);
        assert_eq!(set(&mut security, 2, "admin/0", with(&["spiffe://o/ns/*/*"])), Code::Ok);
        assert_eq!(set(&mut security, 2, "admin/b", with(&["spiffe://o/ns/x*/*"])), Code::Ok);
        assert_eq!(holder(&security, "spiffe://o/ns/x/a").as_deref(), Some("admin/b"), "it says the most");
        assert_eq!(set(&mut security, 2, "admin/b", None), Code::Ok);
        assert_eq!(set(&mut security, 2, "admin/0", None), Code::Ok);
        assert_eq!(set(&mut security, 3, "admin/a", with(&["spiffe://o/c"])), Code::Ok);
        for gone in ["spiffe://o/a", "spiffe://o/ns/x/a"] {
            assert_eq!(holder(&security, gone), None, "{gone}");
        }
        assert_eq!(set(&mut security, 4, "admin/b", with(&["spiffe://o/a"])), Code::Ok);
        assert_eq!(security.revoked().count(), 0, "none of them had a token");
    }

    #[test]
    fn an_asterisk_stands_for_characters_of_one_part() {
        for (pattern, uri, expected) in [
            ("spiffe://t/ns/a/sa/b", "spiffe://t/ns/a/sa/b", true),
            ("spiffe://t/ns/a/sa/b", "spiffe://t/ns/a/sa/bc", false),
            ("spiffe://t/ns/*/sa/b", "spiffe://t/ns/prod/sa/b", true),
            ("spiffe://t/ns/*/sa/b", "spiffe://t/ns/prod/x/sa/b", false),
            ("spiffe://t/ns/a/sa/*", "spiffe://t/ns/a/sa/", true),
            ("spiffe://t/ns/a/sa/*", "spiffe://t/ns/a/sa/b/c", false),
            ("spiffe://t/*-*/x", "spiffe://t/a-b-c/x", true),
            ("spiffe://t/*-*/x", "spiffe://t/ab/x", false),
            ("spiffe://t/a*a", "spiffe://t/a", false),
            ("*", "spiffe://t", false),
            ("", "", true),
        ] {
            assert_eq!(covers(pattern, uri), expected, "{pattern} {uri}");
        }
    }

    #[test]
    fn the_tables_are_bounded() {
        let mut security = Security::default();
        for n in 0..PRINCIPALS_MAX {
            assert_eq!(
                set(&mut security, 1, &format!("admin/{n}"), Some(PrincipalRecord::default())),
                Code::Ok
            );
        }
        let more = Some(PrincipalRecord::default());
        assert_eq!(set(&mut security, 1, "admin/more", more.clone()), Code::NoAvailableHandle);
        assert_eq!(set(&mut security, 1, "admin/0", more), Code::Ok);
        let long = "x".repeat(PRINCIPAL_CERTIFICATE_MAX + 1);
        let pattern = PrincipalRecord { certificates: vec![long.clone()], ..PrincipalRecord::default() };
        assert_eq!(set(&mut security, 1, "admin/0", Some(pattern)), Code::InvalidParams);
        let many = PrincipalRecord {
            certificates: vec![String::new(); PRINCIPAL_CERTIFICATES_MAX + 1],
            ..PrincipalRecord::default()
        };
        assert_eq!(set(&mut security, 1, "admin/0", Some(many)), Code::InvalidParams);

        let mut calls = |tenant: &str, per_second| {
            security.change(
                9,
                ClusterTime(0),
                &SecurityChange::Calls { tenant: tenant.to_owned(), per_second },
            )
        };
        assert_eq!(calls("a", Some(100)), Code::Ok);
        assert_eq!(calls("a", Some(0)), Code::InvalidParams);
        assert_eq!(calls(&long, Some(1)), Code::InvalidParams);
        for n in 1..TENANT_RULES_MAX {
            assert_eq!(calls(&n.to_string(), Some(1)), Code::Ok);
        }
        assert_eq!(calls("more", Some(1)), Code::NoAvailableHandle);
        assert_eq!((calls("a", None), calls("more", Some(7))), (Code::Ok, Code::Ok));
        assert_eq!((security.calls("a"), security.calls("more")), (None, Some(7)));
    }

    #[test]
    fn memory_is_shared_with_a_principal_until_it_is_forgotten() {
        let mut security = Security::default();
        let share = |security: &mut Security, shares_memory| {
            let (name, principal) = ("tenant/a/rw/e".to_owned(), with_token(1));
            let change = SecurityChange::SharingPrincipal { name, principal, shares_memory };
            security.change(9, ClusterTime(0), &change)
        };
        let shares =
            |security: &Security| security.principal("tenant/a/rw/e").map(|known| known.shares_memory);
        assert_eq!(set(&mut security, 1, "tenant/a/rw/e", Some(with_token(1))), Code::Ok);
        assert_eq!((shares(&security), share(&mut security, true)), (Some(false), Code::Ok));
        assert_eq!(set(&mut security, 2, "tenant/a/rw/e", Some(with_token(2))), Code::Ok);
        assert_eq!(shares(&security), Some(true), "another token changes nothing here");
        assert_eq!((share(&mut security, false), shares(&security)), (Code::Ok, Some(false)));
        assert_eq!(share(&mut security, true), Code::Ok);
        for record in [None, Some(with_token(3))] {
            assert_eq!(set(&mut security, 3, "tenant/a/rw/e", record), Code::Ok);
        }
        assert_eq!(shares(&security), Some(false), "it was forgotten in between");
    }

    #[test]
    fn tenants_that_avoid_rdma_are_few() {
        let mut security = Security::default();
        let mut rdma = |tenant: &str, allowed| {
            let change = SecurityChange::Rdma { tenant: tenant.to_owned(), allowed };
            security.change(9, ClusterTime(0), &change)
        };
        assert_eq!(rdma("a", true), Code::Ok, "as it is");
        assert!((0..TENANT_RULES_MAX).all(|n| rdma(&n.to_string(), false) == Code::Ok));
        assert_eq!([rdma("a", false), rdma("7", false)], [Code::NoAvailableHandle, Code::Ok]);
        assert_eq!([rdma("7", true), rdma("a", false)], [Code::Ok; 2]);
        assert_eq!(rdma(&"x".repeat(MAX_TENANT_LEN + 1), false), Code::InvalidParams);
        assert_eq!(["a", "7"].map(|tenant| security.avoids_rdma(tenant)), [true, false]);
    }
}
