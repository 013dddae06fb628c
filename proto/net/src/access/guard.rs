use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use mc_types::{SpiffeId, TlsLevel, Token};
use parking_lot::Mutex;

use super::denied::{Denied, shown};
use super::log::Log;
use super::open_to::OpenTo;
use super::principal::{Demands, Principal, Stranger};
use super::records::{CallerRecord, CallerRecords};
use crate::connection::ConnectInfo;
use crate::tls::{Peer, Tls};

/// Takes each denial, with the address of the caller.
type Note = Box<dyn Fn(Option<SocketAddr>, &Denied) + Send + Sync>;

/// Guard of a process' ports: decides who may make a call, notes denials and logs them.
pub struct Guard {
    tls: Option<Arc<Tls>>,
    records: OnceLock<Box<dyn CallerRecords>>,
    note: Note,
    log: Mutex<Log>,
}

impl Guard {
    /// Returns the guard of a process with these certificates, which calls `note` for each denial, with the address of the caller.
    /// Without certificates all calls are open.
    pub fn new(
        tls: Option<Arc<Tls>>,
        note: impl Fn(Option<SocketAddr>, &Denied) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { tls, records: OnceLock::new(), note: Box::new(note), log: Mutex::default() })
    }

    /// Returns the guard of a process without certificates: it admits everyone.
    #[must_use]
    pub fn open() -> Arc<Self> {
        Self::new(None, |_, _| {})
    }

    /// Consults records about callers from now on. Later calls do nothing.
    pub fn consult(&self, records: impl CallerRecords + 'static) {
        let _ = self.records.set(Box::new(records));
    }

    /// Time after which a stream of messages ends, so that its connection can; `None` without certificates.
    #[must_use]
    pub fn connection_age(&self) -> Option<Duration> {
        self.tls.as_ref().map(|tls| tls.random_connection_age())
    }

    /// Admits a caller to a call, which is named in the error. A caller whose connection is not known counts as one without
    /// TLS. A `token` counts in the place of the caller's certificate. A call that is open to anyone is
    /// admitted even with a wrong token or a denied identity, so that such callers find the leader, which tells them why it refuses
    /// their other calls.
    ///
    /// # Errors
    /// [`Denied`], already noted and logged.
    pub fn admit(
        &self,
        caller: Option<&ConnectInfo>,
        token: Option<&str>,
        open_to: OpenTo,
        call: &str,
    ) -> Result<Principal, Denied> {
        let peer = caller.map_or(&Peer::Plain, |caller| &caller.peer);
        let from = caller.and_then(|caller| caller.remote);
        let admitted = match self.identify(peer, token, call) {
            Err(_) if open_to == OpenTo::Anyone => Ok(Principal::Stranger(Stranger::Anonymous)),
            identified => identified.and_then(|principal| principal.may(open_to, call).map(|()| principal)),
        };
        match admitted {
            Ok(principal) => {
                self.note_tolerated(from, &principal, open_to);
                Ok(principal)
            }
            Err(denied) => Err(self.deny(from, denied)),
        }
    }

    /// Checks that a caller that was admitted would still be. For calls that go on: streams of messages.
    ///
    /// # Errors
    /// [`Denied`], already noted and logged.
    pub fn still_admits(
        &self,
        from: Option<SocketAddr>,
        principal: &Principal,
        call: &str,
    ) -> Result<(), Denied> {
        let record_of = |id: &SpiffeId| self.records.get().and_then(|records| records.by_path(&id.path()));
        let denied = match principal {
            Principal::Open if self.requires_tls() => Denied::Plain { call: shown(call) },
            Principal::Named { id, token, .. } => match record_of(id) {
                Some(record) if record.is_denied => Denied::ShutOut { call: shown(call), id: id.clone() },
                Some(record) if record.is_over => Denied::Expired { call: shown(call), id: id.clone() },
                Some(record) if token.is_none_or(|token| token == record.token_number) => return Ok(()),
                None if token.is_none() => return Ok(()),
                _ => Denied::Token { call: shown(call) },
            },
            Principal::Open | Principal::Stranger(_) => return Ok(()),
        };
        Err(self.deny(from, denied))
    }

    fn requires_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.level() == TlsLevel::Require)
    }

    /// Counts a call that the level `require` would refuse.
    fn note_tolerated(&self, from: Option<SocketAddr>, principal: &Principal, open_to: OpenTo) {
        if let (Principal::Open, Some(tls)) = (principal, &self.tls)
            && open_to != OpenTo::Anyone
        {
            tls.tolerate(from.map(|from| from.ip()));
        }
    }

    /// Notes and logs a denial of a call from an address, and returns it.
    pub fn deny(&self, from: Option<SocketAddr>, denied: Denied) -> Denied {
        (self.note)(from, &denied);
        self.log.lock().denied(from, &denied);
        denied
    }

    fn identify(&self, peer: &Peer, token: Option<&str>, call: &str) -> Result<Principal, Denied> {
        let Some(tls) = &self.tls else { return Ok(Principal::Open) };
        let records = self.records.get();
        let level = tls.level();
        // A process without an identity has no trust domain, and no identity has an empty one.
        tls.with_id(|ours| {
            let trust = ours.map_or("", |ours| ours.trust());
            let caller = match (token, peer) {
                (Some(_), Peer::Plain) => return Err(Denied::TokenInClear { call: shown(call) }),
                (Some(token), _) => {
                    let token = token.parse::<Token>().ok();
                    let caller = token.and_then(|token| records?.by_token(&token.hash()));
                    Some(caller.ok_or_else(|| Denied::Token { call: shown(call) })?)
                }
                (None, Peer::Other(uri)) => records.and_then(|records| records.by_certificate(uri)),
                (None, Peer::Named(id)) if id.trust() == trust => {
                    records.and_then(|records| records.by_path(&id.path()))
                }
                (None, Peer::Named(id)) => {
                    records.and_then(|records| records.by_certificate(&id.to_string()))
                }
                (None, Peer::Plain | Peer::Anonymous) => None,
            };
            let Some(caller) = caller else { return Ok(Principal::of(peer, Some(Demands { level, trust }))) };
            let id = match peer {
                Peer::Named(id) if token.is_none() && id.trust() == trust => id.clone(),
                // A stored name that is no identity matches no caller.
                _ => Arc::new(
                    SpiffeId::of_path(trust, &caller.path)
                        .map_err(|_| Denied::Token { call: shown(call) })?,
                ),
            };
            match caller {
                CallerRecord { is_denied: true, .. } => Err(Denied::ShutOut { call: shown(call), id }),
                CallerRecord { is_over: true, .. } => Err(Denied::Expired { call: shown(call), id }),
                CallerRecord { token_number, shares_memory, .. } => {
                    let token = token.is_some().then_some(token_number);
                    Ok(Principal::Named { id, token, shares_memory })
                }
            }
        })
    }
}

/// Returns the token that a request carries.
#[must_use]
pub fn bearer_of(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?;
    // A value that is no text counts as a wrong token.
    Some(value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default())
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("tls", &self.tls).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::super::denied::DenialReason;
    use super::*;
    use mc_types::{TlsLevel, TokenHash};

    fn certificates() -> Arc<Tls> {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI("spiffe://prod/mc/master/m".try_into().unwrap())];
        let certificate = params.self_signed(&key).unwrap().pem();
        for (name, pem) in
            [("ca.crt", &certificate), ("tls.crt", &certificate), ("tls.key", &key.serialize_pem())]
        {
            fs::write(dir.path().join(name), pem).unwrap();
        }
        Tls::load(dir.path()).unwrap()
    }

    fn caller(peer: Peer) -> ConnectInfo {
        ConnectInfo { remote: Some(([10, 0, 0, 7], 4_000).into()), place: None, peer }
    }

    #[test]
    fn the_present_level_counts_and_each_denial_is_counted() {
        let (tls, counted) = (certificates(), Arc::new(AtomicUsize::new(0)));
        let guard = Guard::new(Some(tls.clone()), {
            let counted = counted.clone();
            move |_, denied| {
                assert_eq!(
                    (denied.reason(), counted.fetch_add(1, Ordering::Relaxed)),
                    (DenialReason::Plain, 0)
                );
            }
        });
        let plain = caller(Peer::Plain);
        tls.set_level(TlsLevel::Allow);
        assert_eq!(guard.admit(Some(&plain), None, OpenTo::MASTERS, "Vote"), Ok(Principal::Open));
        assert_eq!(tls.tolerated_lately(), [plain.remote.unwrap().ip()]);
        tls.set_level(TlsLevel::Require);
        assert!(guard.admit(Some(&plain), None, OpenTo::MASTERS, "Vote").is_err());
        assert_eq!(counted.load(Ordering::Relaxed), 1);

        let named = caller(Peer::Named(Arc::new("spiffe://prod/mc/master/n".parse().unwrap())));
        assert!(guard.admit(Some(&named), None, OpenTo::MASTERS, "Vote").unwrap().id().is_some());
    }

    /// Knows one caller, an admin, whatever is asked for.
    struct Admin(CallerRecord);

    impl CallerRecords for Admin {
        fn by_path(&self, path: &str) -> Option<CallerRecord> {
            (path == self.0.path).then(|| self.0.clone())
        }

        fn by_token(&self, token: &TokenHash) -> Option<CallerRecord> {
            (*token == secret().hash()).then(|| self.0.clone())
        }

        fn by_certificate(&self, uri: &str) -> Option<CallerRecord> {
            ["spiffe://other/sa/a", "spiffe://other/mc/admin/a"].contains(&uri).then(|| self.0.clone())
        }
    }

    fn secret() -> Token {
        format!("mct_{}", "7".repeat(64)).parse().unwrap()
    }

    /// Returns who is admitted to a call for admins where TLS is required, or the reason for the denial.
    fn admitted(known: CallerRecord, peer: Peer, token: Option<&str>) -> Result<Principal, DenialReason> {
        let guard = Guard::new(Some(certificates()), |_, _| {});
        guard.consult(Admin(known));
        guard.admit(Some(&caller(peer)), token, OpenTo::ADMINS, "SetConfig").map_err(|denied| denied.reason())
    }

    #[test]
    fn a_token_and_an_identity_of_another_system_stand_for_a_known_caller() {
        let known = CallerRecord {
            path: "admin/a".into(),
            token_number: 7,
            is_over: false,
            is_denied: false,
            shares_memory: true,
        };
        let secret = secret();
        let token = Some(secret.secret());
        let id = Arc::new("spiffe://prod/mc/admin/a".parse().unwrap());
        let by = |token| Ok(Principal::Named { id: Arc::clone(&id), token, shares_memory: true });
        let reader = Peer::Named(Arc::new("spiffe://prod/mc/tenant/a/ro/e".parse().unwrap()));
        let other = Peer::Other("spiffe://other/sa/a".into());
        assert_eq!(admitted(known.clone(), Peer::Anonymous, token), by(Some(7)));
        assert_eq!(
            admitted(known.clone(), reader, token),
            by(Some(7)),
            "it counts in the certificate's place"
        );
        assert_eq!(admitted(known.clone(), other.clone(), None), by(None));
        assert_eq!(admitted(known.clone(), Peer::Named(id.clone()), None), by(None));

        assert_eq!(
            admitted(known.clone(), Peer::Plain, token),
            Err(DenialReason::Token),
            "others have read it"
        );
        let guard = Guard::new(Some(certificates()), |_, _| {});
        let lost = guard.admit(Some(&caller(Peer::Anonymous)), token, OpenTo::Anyone, "Hello");
        assert_eq!(lost, Ok(Principal::Stranger(Stranger::Anonymous)), "it may ask who leads");
        for unknown in ["", "mct_", Token::random().secret()] {
            let denied = admitted(known.clone(), Peer::Named(id.clone()), Some(unknown));
            assert_eq!(denied, Err(DenialReason::Token), "{unknown}");
        }
        let of_mc = Peer::Named(Arc::new("spiffe://other/mc/admin/a".parse().unwrap()));
        assert_eq!(
            admitted(known.clone(), of_mc, None),
            by(None),
            "another pool's identity is another system's"
        );
        let stranger = Peer::Other("spiffe://other/sa/b".into());
        assert_eq!(admitted(known.clone(), stranger, None), Err(DenialReason::Anonymous));

        let guard = Guard::new(Some(certificates()), |_, _| {});
        guard.consult(Admin(known.clone()));
        let still = |token| {
            let caller = Principal::Named { id: id.clone(), token, shares_memory: false };
            let admitted = guard.still_admits(None, &caller, "Heartbeat");
            admitted.map_err(|denied| denied.reason())
        };
        assert_eq!((still(None), still(Some(7))), (Ok(()), Ok(())));
        assert_eq!(still(Some(6)), Err(DenialReason::Token), "it was replaced meanwhile");
        let open = guard.still_admits(None, &Principal::Open, "Heartbeat").unwrap_err();
        assert_eq!(open.reason(), DenialReason::Plain, "TLS is required by now");

        let (over, denied) =
            (CallerRecord { is_over: true, ..known.clone() }, CallerRecord { is_denied: true, ..known });
        for (peer, token) in [(Peer::Anonymous, token), (other, None), (Peer::Named(id), None)] {
            assert_eq!(admitted(over.clone(), peer.clone(), token), Err(DenialReason::Expired), "{peer:?}");
            assert_eq!(admitted(denied.clone(), peer.clone(), token), Err(DenialReason::ShutOut), "{peer:?}");
        }
    }

    #[test]
    fn a_process_without_certificates_is_open_to_everyone() {
        assert_eq!(Guard::open().admit(None, None, OpenTo::ADMINS, "SetConfig"), Ok(Principal::Open));
    }
}
