//! Who is let in: principals, their tokens, and the level of TLS.

use std::time::{Duration, SystemTime};

use mc_proto::v1::{
    self, GetSecurityRequest, PrincipalCertificates, SetPrincipal, SetSecurityRequest, WhoAmIRequest,
    set_security_request::Change,
};
use mc_types::{TlsLevel, Token};

use super::Admin;
use crate::Error;

/// Who is let in, as the leader knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Security {
    /// How far processes of the cluster with certificates insist on TLS; `None`: the cluster has no level yet.
    pub tls_level: Option<TlsLevel>,
    /// Principals that were added or denied, by name.
    pub principals: Vec<Principal>,
    /// Processes that [`TlsLevel::Require`] would cut off, as far as the leader can tell.
    pub cut_off: Vec<CutOff>,
}

/// A user or process of the cluster, and what the cluster knows of it beyond its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Principal {
    /// Its identity without the trust domain, as `tenant/a/rw/engine`.
    pub name: String,
    /// Whether it has a token.
    pub has_token: bool,
    /// Identities in certificates of other systems that stand for it. An asterisk stands for any characters but a slash.
    pub certificates: Vec<String>,
    /// Time from which on it is refused; `None`: never.
    pub expires: Option<SystemTime>,
    /// Whether it is refused, whatever it shows.
    pub denied: bool,
    /// Whether it may map the memory of stores on its host, which holds the bytes of all tenants.
    pub shares_memory: bool,
}

/// A process that [`TlsLevel::Require`] would cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutOff {
    /// Its name or host.
    pub who: String,
    /// The reason, in words.
    pub why: String,
}

/// A change of a [`Principal`]. All that is not set stays as it is.
#[derive(Clone, Debug, Default)]
pub struct PrincipalChange(SetPrincipal);

/// The caller, as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WhoAmI {
    /// Its identity; `None` if it has shown none that counts.
    pub identity: Option<String>,
    /// Whether its call came by TLS.
    pub tls: bool,
    /// The only tenant that it may use, empty for the default one; `None`: any, in calls that are open to it.
    pub tenant: Option<String>,
    /// Names of the calls that it may make, as `BatchGet`.
    pub calls: Vec<String>,
    /// End of the certificate or token that it has shown; `None`: never, or not known.
    pub expires: Option<SystemTime>,
}

impl PrincipalChange {
    /// Gives the principal this token. The masters get its hash alone; a token that it had before ends.
    #[must_use]
    pub fn with_token(mut self, token: &Token) -> Self {
        self.0.token_hash = Some(token.hash().0.to_vec().into());
        self
    }

    /// Takes away the principal's token.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.0.token_hash = Some(Vec::new().into());
        self
    }

    /// Sets the identities in certificates of other systems that stand for the principal, such as
    /// `spiffe://cluster.local/ns/a/sa/engine`. An asterisk stands for any characters but a slash.
    #[must_use]
    pub fn with_certificates(mut self, uris: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.certificates =
            Some(PrincipalCertificates { uris: uris.into_iter().map(Into::into).collect() });
        self
    }

    /// Sets the time from which on the principal is refused, in whole seconds; `None`: never.
    #[must_use]
    pub fn with_expiry(mut self, expires: Option<SystemTime>) -> Self {
        let since_1970 = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // 0 stands for never, so a time before 1970 is the first second after it.
        self.0.expires_s = Some(expires.map_or(0, |at| since_1970(at).as_secs().max(1)));
        self
    }

    /// Sets whether the principal may map the memory of stores on its host, which holds the bytes of all tenants.
    #[must_use]
    pub fn with_shared_memory(mut self, allowed: bool) -> Self {
        self.0.shares_memory = Some(allowed);
        self
    }

    /// Sets whether the principal is refused, whatever it shows.
    #[must_use]
    pub fn with_denied(mut self, denied: bool) -> Self {
        self.0.denied = Some(denied);
        self
    }
}

impl Admin {
    /// Returns who is let in.
    ///
    /// # Errors
    /// As [`Self::list_members`].
    pub async fn security(&self) -> Result<Security, Error> {
        self.ask(&GetSecurityRequest { caller: None }).await.map(Security::read)
    }

    /// Sets how far processes of the cluster with certificates insist on TLS: those that were not told otherwise at their start.
    ///
    /// Unless `force` is set, the level is not raised to [`TlsLevel::Require`] while processes would be cut off.
    ///
    /// # Errors
    /// `InvalidParams`, which names the processes that would be cut off; else as [`Self::list_members`].
    pub async fn set_tls_level(&self, level: TlsLevel, force: bool) -> Result<(), Error> {
        self.set_security(Change::TlsLevel(level.number()), force).await
    }

    /// Makes a principal known. `name` is its identity without the trust domain, as `tenant/a/rw/engine`.
    ///
    /// # Errors
    /// `InvalidParams` for a name that is none, or is known already; else as [`Self::list_members`].
    pub async fn add_principal(&self, name: &str, change: PrincipalChange) -> Result<(), Error> {
        self.set(name, SetPrincipal { known: Some(false), ..change.0 }).await
    }

    /// Changes a principal that is known.
    ///
    /// # Errors
    /// `InvalidParams` for a name that is not known; else as [`Self::list_members`].
    pub async fn set_principal(&self, name: &str, change: PrincipalChange) -> Result<(), Error> {
        self.set(name, SetPrincipal { known: Some(true), ..change.0 }).await
    }

    /// Forgets a principal, with its token. A certificate of the cluster with its identity counts all the same.
    ///
    /// # Errors
    /// As [`Self::set_principal`].
    pub async fn remove_principal(&self, name: &str) -> Result<(), Error> {
        self.set(name, SetPrincipal { known: Some(true), forget: true, ..SetPrincipal::default() }).await
    }

    /// Draws a new token for a principal that is known, and returns it. The one that it had before ends. It can't be read from the
    /// masters again: they get its hash alone.
    ///
    /// # Errors
    /// As [`Self::set_principal`].
    pub async fn renew_token(&self, name: &str) -> Result<Token, Error> {
        let token = Token::random();
        self.set_principal(name, PrincipalChange::default().with_token(&token)).await?;
        Ok(token)
    }

    /// Refuses a principal from now on, whatever it shows, whether it was known before or not.
    ///
    /// # Errors
    /// `InvalidParams` for a name that is none; else as [`Self::list_members`].
    pub async fn deny_principal(&self, name: &str) -> Result<(), Error> {
        self.set(name, PrincipalChange::default().with_denied(true).0).await
    }

    /// Ends [`Self::deny_principal`].
    ///
    /// # Errors
    /// As [`Self::set_principal`].
    pub async fn allow_principal(&self, name: &str) -> Result<(), Error> {
        self.set_principal(name, PrincipalChange::default().with_denied(false)).await
    }

    /// Returns who this client is to the leader, and which calls it may make.
    ///
    /// # Errors
    /// `Unauthenticated` or `PermissionDenied` if the leader knows this client and refuses it; else as [`Self::list_members`].
    pub async fn who_am_i(&self) -> Result<WhoAmI, Error> {
        Ok(WhoAmI::read(self.ask(&WhoAmIRequest { caller: None }).await?))
    }

    async fn set(&self, name: &str, change: SetPrincipal) -> Result<(), Error> {
        self.set_security(Change::Principal(SetPrincipal { name: name.to_owned(), ..change }), false).await
    }

    /// Makes a change, which may be repeated: it sets what is to be. A principal that was added or forgotten before the answer was
    /// lost is refused as known, or unknown, with the outcome left open.
    async fn set_security(&self, change: Change, force: bool) -> Result<(), Error> {
        let request = SetSecurityRequest { caller: None, force, change: Some(change) };
        self.ask(&request).await.map(drop)
    }
}

impl Security {
    /// Reads a reply; `None` when its level is none.
    fn read(reply: v1::GetSecurityReply) -> Self {
        let cut_off = |v1::CutOff { who, why }| CutOff { who, why };
        Self {
            tls_level: TlsLevel::of_number(reply.tls_level),
            principals: reply.principals.into_iter().map(Principal::read).collect(),
            cut_off: reply.cut_off.into_iter().map(cut_off).collect(),
        }
    }
}

impl Principal {
    fn read(principal: v1::Principal) -> Self {
        let v1::Principal { name, has_token, certificates, expires_s, denied, shares_memory } = principal;
        Self { name, has_token, certificates, expires: time(expires_s), denied, shares_memory }
    }
}

impl WhoAmI {
    /// Returns whether the caller may make the call of this name, as `BatchGet`, in any case of its letters.
    #[must_use]
    pub fn may(&self, call: &str) -> bool {
        self.calls.iter().any(|open| open.eq_ignore_ascii_case(call))
    }

    /// Returns whether the caller may use a tenant, in calls that are open to it. The empty name is the default tenant.
    #[must_use]
    pub fn may_use(&self, tenant: &str) -> bool {
        self.tenant.as_ref().is_none_or(|only| only == tenant)
    }

    fn read(reply: v1::WhoAmIReply) -> Self {
        let v1::WhoAmIReply { identity, tls, tenant, calls, expires_s } = reply;
        let identity = Some(identity).filter(|identity| !identity.is_empty());
        Self { identity, tls, tenant, calls, expires: time(expires_s) }
    }
}

/// Reads a time in seconds since 1970; `None` for 0, which is never, and for one that the clock can't count to.
fn time(seconds: u64) -> Option<SystemTime> {
    if seconds == 0 { None } else { SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_only_what_was_set() {
        let token = Token::random();
        assert_eq!(PrincipalChange::default().0, SetPrincipal::default());
        let change = PrincipalChange::default()
            .with_token(&token)
            .with_certificates(["spiffe://k8s/ns/a/*"])
            .with_expiry(Some(SystemTime::UNIX_EPOCH))
            .with_shared_memory(true);
        let expected = SetPrincipal {
            token_hash: Some(token.hash().0.to_vec().into()),
            certificates: Some(PrincipalCertificates { uris: vec!["spiffe://k8s/ns/a/*".to_owned()] }),
            expires_s: Some(1),
            shares_memory: Some(true),
            ..SetPrincipal::default()
        };
        assert_eq!(change.0, expected);
        let back = PrincipalChange::default().without_token().with_expiry(None).with_denied(false);
        let expected = SetPrincipal {
            token_hash: Some(Vec::new().into()),
            expires_s: Some(0),
            denied: Some(false),
            ..SetPrincipal::default()
        };
        assert_eq!(back.0, expected);
    }

    #[test]
    fn a_caller_is_held_to_its_calls_and_its_tenant() {
        let reply = v1::WhoAmIReply {
            identity: "spiffe://prod/mc/tenant/a/ro/x".to_owned(),
            tls: true,
            tenant: Some("a".to_owned()),
            calls: vec!["BatchGet".to_owned()],
            expires_s: u64::MAX,
        };
        let reader = WhoAmI::read(reply);
        assert_eq!(
            ["BatchGet", "batchget", "BatchPutStart"].map(|call| reader.may(call)),
            [true, true, false]
        );
        assert_eq!(["a", "b", ""].map(|tenant| reader.may_use(tenant)), [true, false, false]);
        assert_eq!(reader.expires, None, "further than the clock counts");
        let nobody = WhoAmI::read(v1::WhoAmIReply::default());
        assert_eq!((nobody.identity.as_deref(), nobody.may_use("b")), (None, true));
    }
}
