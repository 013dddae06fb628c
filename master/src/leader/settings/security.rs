use std::sync::Arc;

use futures::future::join_all;
use mc_index::{PrincipalRecord, Request, SECURITY_SINCE, Security, SecurityChange};
use mc_net::Tls;
use mc_raft::RaftNode;
use mc_types::{Code, Grant, HostPort, Role, SpiffeId, TlsLevel, TokenHash};
use tokio::sync::Mutex;

use crate::formation::{Formation, TlsReport, tls_report};
use crate::leader::term::{Coordinator, Leading, Refusal};

/// Most processes that a refusal names.
const NAMED: usize = 3;

/// Serves and changes the access settings.
pub(crate) struct SecuritySettings {
    coordinator: Arc<Coordinator>,
    raft: Arc<RaftNode>,
    formation: Arc<Formation>,
    tls: Option<Arc<Tls>>,
    /// Held while a principal is changed.
    changing: Mutex<()>,
}

/// A process that the level `require` would cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CutOff {
    pub(crate) who: String,
    pub(crate) why: String,
}

/// Change of the record of a principal. What is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrincipalChange {
    /// Its identity without the trust domain.
    pub(crate) name: String,
    /// Whether it has to be known, or must not be.
    pub(crate) known: Option<bool>,
    pub(crate) forget: bool,
    pub(crate) token: Option<Option<TokenHash>>,
    pub(crate) certificates: Option<Vec<String>>,
    pub(crate) expires: Option<Option<u64>>,
    pub(crate) denied: Option<bool>,
    pub(crate) shares_memory: Option<bool>,
}

impl SecuritySettings {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        raft: Arc<RaftNode>,
        formation: Arc<Formation>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        Self { coordinator, raft, formation, tls, changing: Mutex::default() }
    }

    /// Returns the access settings, and which processes the level `require` would cut off.
    pub(crate) async fn get(&self) -> Result<(Security, Vec<CutOff>), Refusal> {
        let leading = self.coordinator.lead().await?;
        Ok((self.coordinator.security(), self.cut_off(&leading).await))
    }

    /// Sets how far processes insist on TLS. Unless it is forced, nobody is cut off by it.
    pub(crate) async fn set_level(&self, level: TlsLevel, force: bool) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        if level == TlsLevel::Require && !force {
            match self.coordinator.security().level() {
                Some(TlsLevel::Require) => {}
                Some(TlsLevel::Prefer) => {
                    nobody_cut_off(&self.cut_off(&leading).await).map_err(Refusal::Invalid)?;
                }
                // Processes that dial in the clear would go on to, and count for nobody while they are silent.
                Some(TlsLevel::Allow) | None => {
                    return Err(Refusal::Invalid(
                        "the cluster is below prefer: go there first (`mcctl security tls prefer`), and wait a minute, or use \
                         --force"
                            .to_owned(),
                    ));
                }
            }
        }
        self.propose(&leading, SecurityChange::Level(level)).await?;
        tracing::info!(%level, "the cluster's level of TLS was set");
        Ok(())
    }

    /// Changes the record of a principal.
    ///
    /// Changes are made one after the other, as those of settings are: an entry holds a whole record
    /// ([`Configuration::set`](super::Configuration::set)).
    pub(crate) async fn set_principal(&self, change: PrincipalChange) -> Result<(), Refusal> {
        let id = SpiffeId::of_path("cluster", &change.name)
            .map_err(|error| Refusal::Invalid(error.to_string()))?;
        let _one_at_a_time = self.changing.lock().await;
        let leading = self.coordinator.lead().await?;
        self.coordinator.propose(&leading, &Request::tick()).await?;
        let name = id.path();
        let before = self.coordinator.security().principal(&name).map(|stored| stored.record.clone());
        let shares_memory = change.shares_memory;
        let principal = changed(&id, before, change).map_err(Refusal::Invalid)?;
        let (is_known, is_denied) =
            (principal.is_some(), principal.as_ref().is_some_and(|principal| principal.denied));
        let change = match (principal, shares_memory) {
            (Some(principal), Some(shares_memory)) => {
                SecurityChange::SharingPrincipal { name: name.clone(), principal, shares_memory }
            }
            (principal, _) => SecurityChange::Principal { name: name.clone(), principal },
        };
        self.propose(&leading, change).await?;
        tracing::info!(name, is_known, is_denied, "a principal was changed");
        Ok(())
    }

    /// Sets the most calls a second of a tenant's users; `None` for no limit.
    pub(crate) async fn set_calls(&self, tenant: String, per_second: Option<u32>) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        // There is no limit yet. Later a change is proposed even if it seems to change nothing: one before it may be applied after this
        // look.
        if per_second.is_none() && self.cluster_version() < SECURITY_SINCE {
            return Ok(());
        }
        self.propose(&leading, SecurityChange::Calls { tenant, per_second }).await
    }

    /// Sets whether bytes of a tenant may go by RDMA. They may not only where every store can tell.
    pub(crate) async fn set_rdma(&self, tenant: String, allowed: bool) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        if !allowed {
            let older = self.coordinator.read(|applied| {
                let older = applied.state.stores().filter(|store| !store.reads_grants_of(Grant::FORMAT));
                older.map(|store| store.name.to_owned()).take(NAMED).collect::<Vec<_>>()
            });
            if !older.is_empty() {
                return Err(Refusal::Invalid(format!(
                    "stores of older builds do not know of tenants that avoid RDMA: upgrade {} first",
                    older.join(", ")
                )));
            }
        }
        self.propose(&leading, SecurityChange::Rdma { tenant, allowed }).await
    }

    fn cluster_version(&self) -> u32 {
        self.coordinator.read(|applied| applied.state.cluster_version())
    }

    async fn propose(&self, leading: &Leading, change: SecurityChange) -> Result<(), Refusal> {
        let version = self.cluster_version();
        if version < SECURITY_SINCE {
            return Err(Refusal::Invalid(format!(
                "the cluster runs as version {version}, and knows who is let in from version {SECURITY_SINCE} on: upgrade all \
                 masters, then run `mcctl upgrade finish`"
            )));
        }
        match self.coordinator.propose(leading, &Request::set_security(change)).await? {
            Code::Ok => Ok(()),
            Code::NoAvailableHandle => {
                Err(Refusal::Invalid("the table is full: remove what is not used any more".to_owned()))
            }
            code => Err(Refusal::Invalid(format!("the change is refused: {}", code.name()))),
        }
    }

    /// Lists the processes that the level `require` would cut off, as far as they are known: masters and stores without
    /// certificates, and hosts that called one of them without an identity within the last minute.
    async fn cut_off(&self, leading: &Leading) -> Vec<CutOff> {
        let mut cut_off = Vec::new();
        let us = self.raft.node_id();
        add(&mut cut_off, format!("master {us}"), Some(&tls_report(self.tls.as_deref()).into()));
        let members = self.raft.members();
        let others = members.iter().filter(|(node, addresses)| **node != us && !addresses.is_reserved());
        let asked = join_all(others.map(|(node, addresses)| async move {
            let address = HostPort::parse(&addresses.raft, 0).map_err(|error| error.to_string());
            let answer = match &address {
                Ok(address) => self.formation.who_is_at(address).await,
                Err(why) => Err(why.clone()),
            };
            (format!("master {node}"), answer)
        }));
        for (who, answer) in asked.await {
            match answer {
                Ok(answer) => add(&mut cut_off, who, answer.tls.as_ref()),
                Err(why) => cut_off.push(CutOff { who, why: format!("it does not answer ({why})") }),
            }
        }
        let stores = self.coordinator.read(|applied| {
            let stores = applied.state.stores();
            stores.map(|store| (store.store, store.name.to_owned())).collect::<Vec<_>>()
        });
        for (store, name) in stores {
            add(&mut cut_off, format!("store {name}"), leading.tls_reports.of(store).as_ref());
        }
        cut_off
    }
}

/// Adds what the level `require` would cut off at a process, by its own report.
fn add(cut_off: &mut Vec<CutOff>, who: String, report: Option<&TlsReport>) {
    let Some(report) = report else {
        cut_off.push(CutOff { who, why: "it has not said whether it has a certificate".to_owned() });
        return;
    };
    if !report.has_certificate {
        cut_off.push(CutOff { who: who.clone(), why: "it has no certificate".to_owned() });
    }
    for host in &report.tolerated {
        let why = format!("it called {who} without an identity within the last minute");
        cut_off.push(CutOff { who: host.clone(), why });
    }
}

fn nobody_cut_off(cut_off: &[CutOff]) -> Result<(), String> {
    if cut_off.is_empty() {
        return Ok(());
    }
    let named: Vec<_> = cut_off.iter().take(NAMED).map(|it| format!("{} ({})", it.who, it.why)).collect();
    let more = cut_off.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Err(format!(
        "the level require would cut off {}{more}: give them certificates, go to `prefer` first and wait a minute \
         (`mcctl security status` lists them), or use --force",
        named.join(", ")
    ))
}

/// Returns the record of a principal after a change.
fn changed(
    id: &SpiffeId,
    before: Option<PrincipalRecord>,
    change: PrincipalChange,
) -> Result<Option<PrincipalRecord>, String> {
    let name = id.path();
    match (change.known, &before) {
        (Some(true), None) => {
            return Err(format!(
                "the principal {name} is not known: `mcctl principals list` shows those that are"
            ));
        }
        (Some(false), Some(_)) => {
            return Err(format!(
                "the principal {name} is known already: change it by `mcctl principals token|deny|allow`, or remove it first"
            ));
        }
        _ => {}
    }
    if change.forget {
        return Ok(None);
    }
    let mut after = before.unwrap_or_default();
    let PrincipalChange { token, certificates, expires, denied, .. } = change;
    after.token = token.unwrap_or(after.token);
    after.certificates = certificates.unwrap_or(after.certificates);
    after.expires = expires.unwrap_or(after.expires);
    after.denied = denied.unwrap_or(after.denied);
    if *id.role() == Role::Master && (after.denied || after.expires.is_some()) {
        return Err(format!(
            "{name} is a master's identity: if a majority refused its own members, nobody could take that back; remove the master \
             (`mcctl members remove`), and replace the authority of its certificate"
        ));
    }
    let is_process = matches!(id.role(), Role::Master | Role::Store);
    if is_process && (after.token.is_some() || !after.certificates.is_empty()) {
        return Err(format!(
            "{name} is a process of the pool, which has a certificate of its own: neither a token nor another system's \
             identity can stand for it"
        ));
    }
    Ok(Some(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(has_certificate: bool, tolerated: &[&str]) -> TlsReport {
        TlsReport { has_certificate, tolerated: tolerated.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn nobody_is_cut_off_unasked_and_the_refusal_names_who_would_be() {
        let mut cut_off = Vec::new();
        add(&mut cut_off, "master 1".into(), Some(&report(true, &[])));
        assert_eq!(nobody_cut_off(&cut_off), Ok(()));
        add(&mut cut_off, "master 2".into(), Some(&report(false, &[])));
        add(&mut cut_off, "store kv".into(), None);
        add(&mut cut_off, "store kw".into(), Some(&report(true, &["10.0.0.7", "10.0.0.8"])));
        let why = nobody_cut_off(&cut_off).unwrap_err();
        let says = [
            "master 2 (it has no",
            "store kv (it has not said",
            "10.0.0.7 (it called store kw",
            "and 1 more",
        ];
        assert!(says.iter().all(|part| why.contains(part)), "{why}");
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let id = SpiffeId::of_path("t", "tenant/a/rw/e").unwrap();
        let with = |known| PrincipalChange { name: id.path(), known, ..PrincipalChange::default() };
        let token = Some(TokenHash([7; 32]));
        let new = PrincipalChange { token: Some(token), expires: Some(Some(9)), ..with(Some(false)) };
        let before = changed(&id, None, new).unwrap();
        let denied = PrincipalChange { denied: Some(true), ..with(None) };
        let after = changed(&id, before.clone(), denied).unwrap().unwrap();
        assert_eq!(
            after,
            PrincipalRecord { token, expires: Some(9), denied: true, ..PrincipalRecord::default() }
        );
        assert!(changed(&id, before.clone(), with(Some(false))).unwrap_err().contains("known already"));
        assert!(changed(&id, None, with(Some(true))).unwrap_err().contains("not known"));
        let forget = PrincipalChange { forget: true, ..with(Some(true)) };
        assert_eq!(changed(&id, before, forget), Ok(None));
    }

    #[test]
    fn processes_of_the_pool_have_certificates_alone() {
        for role in ["master/m", "store/s"] {
            let id = SpiffeId::of_path("t", role).unwrap();
            let token =
                PrincipalChange { token: Some(Some(TokenHash([7; 32]))), ..PrincipalChange::default() };
            assert!(changed(&id, None, token).unwrap_err().contains("a process of the pool"));
        }
    }

    #[test]
    fn a_store_is_denied_and_a_master_is_not() {
        let denied = |path| {
            let change = PrincipalChange { denied: Some(true), ..PrincipalChange::default() };
            changed(&SpiffeId::of_path("t", path).unwrap(), None, change)
        };
        assert!(denied("store/s").unwrap().unwrap().denied);
        assert!(denied("master/m").unwrap_err().contains("members remove"));
        let expires = PrincipalChange { expires: Some(Some(9)), ..PrincipalChange::default() };
        assert!(changed(&SpiffeId::of_path("t", "master/m").unwrap(), None, expires).is_err());
    }
}
