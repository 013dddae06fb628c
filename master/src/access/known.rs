use std::time::SystemTime;

use mc_index::{KnownPrincipal, Security};
use mc_net::{Known, KnownCallers};
use mc_types::TokenHash;
use tokio::sync::watch;

/// Callers as the replicated state of this master knows them. Whether the time of one is over, this machine's clock says.
pub(crate) struct KnownToCluster(pub(crate) watch::Receiver<Option<Security>>);

impl KnownCallers for KnownToCluster {
    fn by_path(&self, path: &str) -> Option<Known> {
        self.0.borrow().as_ref()?.principal(path).map(|known| known_as(path, known))
    }

    fn by_token(&self, token: &TokenHash) -> Option<Known> {
        self.0.borrow().as_ref()?.with_token(token).map(|(path, known)| known_as(path, known))
    }

    fn by_certificate(&self, uri: &str) -> Option<Known> {
        self.0.borrow().as_ref()?.with_certificate(uri).map(|(path, known)| known_as(path, known))
    }
}

fn known_as(path: &str, known: &KnownPrincipal) -> Known {
    let KnownPrincipal { principal, token_number } = known;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Known {
        path: path.to_owned(),
        token_number: *token_number,
        is_over: principal.expires.is_some_and(|expires| now() >= expires),
        is_denied: principal.denied,
    }
}

#[cfg(test)]
mod tests {
    use mc_index::SECURITY_SINCE;
    use mc_raft::testing::Pool;
    use mc_raft::{RaftTiming, SnapshotLimits};
    use mc_types::{TlsLevel, Token};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::leader::PrincipalChange;
    use crate::leader::tests::upgrade::services;

    /// Masters judge callers by a copy of the state beside the index. If it were made after the proposer's answer, a call that comes
    /// right after a denial could get through.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_change_shuts_out_is_shut_out_before_the_change_is_answered() {
        let mut pool = Pool::formed_with(1, SnapshotLimits::default(), RaftTiming::LAN).await;
        let leads = pool.leader().await;
        let (dir, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let leader = services(pool.take(leads), &dir, Box::new(|| 0), stop);
        let known = KnownToCluster(leader.raft.index().security());
        let name = "tenant/a/rw/engine";
        let with = |change: PrincipalChange| leader.security.set_principal(change);
        let named = || PrincipalChange { name: name.to_owned(), ..PrincipalChange::default() };

        let early = with(named()).await.unwrap_err().to_string();
        assert!(
            early.contains(&format!("from version {SECURITY_SINCE} on")) && early.contains("upgrade finish"),
            "{early}"
        );
        leader.configuration.finish_upgrade(true).await.unwrap();

        for _ in 0..200 {
            let token = Token::random();
            let given = PrincipalChange { token: Some(Some(token.hash())), denied: Some(false), ..named() };
            with(given).await.unwrap();
            let holder = known.by_token(&token.hash()).expect("it is known at once");
            assert_eq!((&*holder.path, holder.is_denied), (name, false));
            with(PrincipalChange { denied: Some(true), ..named() }).await.unwrap();
            assert!(
                known.by_token(&token.hash()).unwrap().is_denied && known.by_path(name).unwrap().is_denied
            );
        }
        with(PrincipalChange { forget: true, ..named() }).await.unwrap();
        assert_eq!(known.by_path(name), None);

        // Without certificates, the leader itself would be cut off.
        let why = leader.security.set_level(TlsLevel::Require, false).await.unwrap_err().to_string();
        assert!(why.contains("would cut off master") && why.contains("it has no certificate"), "{why}");
        leader.security.set_level(TlsLevel::Require, true).await.unwrap();
        assert_eq!(leader.security.get().await.unwrap().0.level(), TlsLevel::Require);
    }
}
