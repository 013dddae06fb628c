use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::denied::{DenialReason, Denied};
use super::log::Log;
use super::open_to::OpenTo;
use super::principal::{Demands, Principal};
use crate::connection::ConnectInfo;
use crate::tls::{Peer, Tls};

/// Guard of a process' ports: decides who may make a call, counts denials and logs them.
pub struct Guard {
    tls: Option<Arc<Tls>>,
    count: Box<dyn Fn(DenialReason) + Send + Sync>,
    log: Mutex<Log>,
}

impl Guard {
    /// Returns the guard of a process with these certificates, which calls `count` for each denial. Without certificates all
    /// calls are open.
    pub fn new(tls: Option<Arc<Tls>>, count: impl Fn(DenialReason) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { tls, count: Box::new(count), log: Mutex::default() })
    }

    /// Returns the guard of a process without certificates: it admits everyone.
    #[must_use]
    pub fn open() -> Arc<Self> {
        Self::new(None, |_| {})
    }

    /// Admits a caller to a call, which is named in the error. A caller whose connection is not known counts as one without
    /// TLS.
    ///
    /// # Errors
    /// [`Denied`], already counted and logged.
    pub fn admit(
        &self,
        caller: Option<&ConnectInfo>,
        open_to: OpenTo,
        call: &str,
    ) -> Result<Principal, Denied> {
        let principal = self.principal(caller.map_or(&Peer::Plain, |caller| &caller.peer));
        match principal.may(open_to, call) {
            Ok(()) => {
                self.note_tolerated(&principal, open_to);
                Ok(principal)
            }
            Err(denied) => Err(self.deny(caller.and_then(|caller| caller.remote), denied)),
        }
    }

    /// Counts a call that is let in below the level `require` alone.
    fn note_tolerated(&self, principal: &Principal, open_to: OpenTo) {
        if let (Principal::Open, Some(tls)) = (principal, &self.tls)
            && open_to != OpenTo::Anyone
        {
            tls.tolerate();
        }
    }

    /// Counts and logs a denial of a call from an address, and returns it.
    pub fn deny(&self, from: Option<SocketAddr>, denied: Denied) -> Denied {
        (self.count)(denied.reason());
        self.log.lock().denied(from, &denied);
        denied
    }

    fn principal(&self, peer: &Peer) -> Principal {
        let Some(tls) = &self.tls else { return Principal::Open };
        let level = tls.level();
        // A process without an identity has no trust domain, and no identity has an empty one.
        tls.with_id(|id| Principal::of(peer, Some(Demands { level, trust: id.map_or("", |id| id.trust()) })))
    }
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

    use super::*;
    use crate::tls::TlsLevel;

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
            move |reason| {
                assert_eq!((reason, counted.fetch_add(1, Ordering::Relaxed)), (DenialReason::Plain, 0));
            }
        });
        let plain = caller(Peer::Plain);
        tls.set_level(TlsLevel::Allow);
        assert_eq!(guard.admit(Some(&plain), OpenTo::MASTERS, "Vote"), Ok(Principal::Open));
        tls.set_level(TlsLevel::Require);
        assert!(guard.admit(Some(&plain), OpenTo::MASTERS, "Vote").is_err());
        assert_eq!(counted.load(Ordering::Relaxed), 1);

        let named = caller(Peer::Named("spiffe://prod/mc/master/n".parse().unwrap()));
        assert!(matches!(guard.admit(Some(&named), OpenTo::MASTERS, "Vote"), Ok(Principal::Named(_))));
    }

    #[test]
    fn a_process_without_certificates_is_open_to_everyone() {
        assert_eq!(Guard::open().admit(None, OpenTo::ADMINS, "SetConfig"), Ok(Principal::Open));
    }
}
