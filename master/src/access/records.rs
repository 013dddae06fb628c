use std::time::SystemTime;

use mc_index::{Security, StoredPrincipal};
use mc_net::{CallerRecord, CallerRecords};
use mc_types::TokenHash;
use tokio::sync::watch;

/// Records about callers in the replicated state. Expiry is judged by this machine's clock.
pub(crate) struct ReplicatedRecords(pub(crate) watch::Receiver<Security>);

impl CallerRecords for ReplicatedRecords {
    fn by_path(&self, path: &str) -> Option<CallerRecord> {
        self.0.borrow().principal(path).map(|stored| record_of(path, stored))
    }

    fn by_token(&self, token: &TokenHash) -> Option<CallerRecord> {
        self.0.borrow().with_token(token).map(|(path, stored)| record_of(path, stored))
    }

    fn by_certificate(&self, uri: &str) -> Option<CallerRecord> {
        self.0.borrow().with_certificate(uri).map(|(path, stored)| record_of(path, stored))
    }
}

fn record_of(path: &str, stored: &StoredPrincipal) -> CallerRecord {
    let StoredPrincipal { record, token_number, shares_memory } = stored;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    CallerRecord {
        path: path.to_owned(),
        token_number: *token_number,
        is_over: record.expires.is_some_and(|expires| now() >= expires),
        is_denied: record.denied,
        shares_memory: *shares_memory,
    }
}

#[cfg(test)]
mod tests {
    use mc_index::SECURITY_SINCE;
    use mc_types::{TlsLevel, Token};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::leader::PrincipalChange;
    use crate::leader::tests::upgrade::lone_leader;

    /// Masters judge callers by a copy of the state beside the index. If it were made after the proposer's answer, a call that comes
    /// right after a denial could get through.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_change_shuts_out_is_shut_out_before_the_change_is_answered() {
        let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
        let known = ReplicatedRecords(leader.raft.index().security());
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

        // Step by step; and without certificates, the leader itself would be cut off.
        let early = leader.security.set_level(TlsLevel::Require, false).await.unwrap_err().to_string();
        assert!(early.contains("tls prefer"), "{early}");
        leader.security.set_level(TlsLevel::Prefer, false).await.unwrap();
        let why = leader.security.set_level(TlsLevel::Require, false).await.unwrap_err().to_string();
        assert!(why.contains("would cut off master") && why.contains("it has no certificate"), "{why}");
        leader.security.set_level(TlsLevel::Require, true).await.unwrap();
        assert_eq!(leader.security.get().await.unwrap().0.level(), Some(TlsLevel::Require));
    }
}
