use std::sync::Arc;

use mc_net::Tls;
use mc_proto::v1;
use mc_types::TlsLevel;

/// Certificates of the store, and how the masters learn of them and set their level.
#[derive(Clone, Debug)]
pub(crate) struct LinkTls {
    tls: Option<Arc<Tls>>,
    /// Whether the cluster says how far this process insists on TLS, and not its user.
    follows: bool,
}

impl LinkTls {
    /// Returns the certificates `tls`, whose level the cluster sets if it `follows`.
    pub(crate) fn new(tls: Option<Arc<Tls>>, follows: bool) -> Self {
        Self { tls, follows }
    }

    /// Returns what the leader is to know.
    pub(crate) fn report(&self) -> v1::TlsReport {
        let Some(tls) = &self.tls else { return v1::TlsReport::default() };
        v1::TlsReport {
            has_certificate: tls.id().is_some(),
            level: tls.level().number(),
            tolerated: tls.tolerated_lately().iter().map(ToString::to_string).collect(),
        }
    }

    /// Adopts the leader's level, which comes as its number. A store of one tenant goes no lower than `prefer`: masters know its tenant by
    /// the certificate that it shows them.
    ///
    /// At `require`, where a store begins, the leader has shown its certificate. At a lower level another process may pass for
    /// it, and for a store to a client as well.
    pub(crate) fn follow(&self, number: u32) {
        let id = self.tls.as_ref().and_then(|tls| tls.id());
        let is_of_one_tenant = id.is_some_and(|id| id.writes_for().is_some());
        let least = if is_of_one_tenant { TlsLevel::Prefer } else { TlsLevel::Allow };
        self.adopt(TlsLevel::of_number(number).map(|level| level.max(least)), |_| true);
    }

    /// Adopts the level that a master names, if it is higher: a store that dials in the clear could not ask the leader. Anybody may
    /// raise it, because that lets nobody in.
    pub(crate) fn raise(&self, level: Option<TlsLevel>) {
        self.adopt(level, |from| level > Some(from));
    }

    fn adopt(&self, level: Option<TlsLevel>, from: impl FnOnce(TlsLevel) -> bool) {
        if let (Some(tls), true, Some(level)) = (&self.tls, self.follows, level)
            && tls.level() != level
            && from(tls.level())
        {
            tls.set_level(level);
            tracing::info!(%level, "this store adopts its cluster's level of TLS");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mc_types::TlsLevel;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificates() -> Arc<Tls> {
        certificates_of("spiffe://prod/mc/store/kv")
    }

    fn certificates_of(id: &str) -> Arc<Tls> {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        let certificate = params.self_signed(&key).unwrap().pem();
        for (name, pem) in
            [("ca.crt", &certificate), ("tls.crt", &certificate), ("tls.key", &key.serialize_pem())]
        {
            fs::write(dir.path().join(name), pem).unwrap();
        }
        Tls::load(dir.path()).unwrap()
    }

    #[test]
    fn the_level_is_the_clusters_unless_the_user_has_set_one() {
        for (follows, expected) in [(true, TlsLevel::Prefer), (false, TlsLevel::Require)] {
            let tls = certificates();
            let link = LinkTls::new(Some(tls.clone()), follows);
            // 0: an older master.
            [2, 0, 9].into_iter().for_each(|number| link.follow(number));
            assert_eq!(tls.level(), expected);
            link.raise(Some(TlsLevel::Allow));
            link.raise(None);
            assert_eq!(tls.level(), expected, "a master that is not known to lead lowers nothing");
            assert_eq!(link.report().level, expected.number());
        }
    }

    #[test]
    fn a_store_of_one_tenant_always_shows_its_certificate() {
        let tls = certificates_of("spiffe://prod/mc/tenant/a/rw/kv");
        let link = LinkTls::new(Some(tls.clone()), true);
        for (named, adopted) in [
            (TlsLevel::Allow, TlsLevel::Prefer),
            (TlsLevel::Require, TlsLevel::Require),
            (TlsLevel::Prefer, TlsLevel::Prefer),
        ] {
            link.follow(named.number());
            assert_eq!(tls.level(), adopted);
        }
    }

    #[test]
    fn any_master_raises_the_level() {
        let tls = certificates();
        let link = LinkTls::new(Some(tls.clone()), true);
        link.follow(TlsLevel::Allow.number());
        link.raise(Some(TlsLevel::Require));
        assert_eq!(tls.level(), TlsLevel::Require);
    }

    #[test]
    fn the_leader_hears_of_the_certificate_and_of_those_who_showed_none() {
        let tls = certificates();
        tls.tolerate(Some([10, 0, 0, 7].into()));
        let report = LinkTls::new(Some(tls), true).report();
        assert!(report.has_certificate);
        assert_eq!(report.tolerated, ["10.0.0.7"]);
        assert_eq!(LinkTls::new(None, true).report(), v1::TlsReport::default());
    }
}
