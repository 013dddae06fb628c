//! The replicated settings and the cluster version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_index::{CLUSTER_VERSION, Request, SECURITY_SINCE, SecurityChange, Settings};
use mc_net::Tls;
use mc_raft::RaftNode;
use mc_types::{HostPort, NodeId, TlsLevel};
use tokio::sync::Mutex;

use crate::config::Setting;
use crate::formation::Formation;
use crate::leader::term::{Coordinator, HEARD_WITHIN, Leading, OutdatedCaller, Refusal};

/// Settings and version of the cluster, as they are replicated.
#[derive(Clone, Debug)]
pub(crate) struct Replicated {
    pub(crate) settings: Settings,
    /// Cluster version; 0 if the cluster has just formed and its first leader has not logged its settings yet.
    pub(crate) version: u32,
}

/// Serves and changes the replicated settings and the cluster version.
pub(crate) struct Configuration {
    coordinator: Arc<Coordinator>,
    raft: Arc<RaftNode>,
    formation: Arc<Formation>,
    /// Settings from this master's flags. A new cluster takes those of its first leader.
    seed: Settings,
    /// Certificates of this master. A cluster without a level of TLS takes that of its leader.
    tls: Option<Arc<Tls>>,
    /// Held while a setting or the version is changed.
    changing: Mutex<()>,
}

impl Configuration {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        raft: Arc<RaftNode>,
        formation: Arc<Formation>,
        seed: Settings,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        Self { coordinator, raft, formation, seed, tls, changing: Mutex::default() }
    }

    pub(crate) async fn get(&self) -> Result<Replicated, Refusal> {
        self.coordinator.lead().await?;
        Ok(self.replicated())
    }

    /// Changes one setting; returns the settings before and after.
    ///
    /// Changes are made one after the other, also across a change of the leader: an entry holds all settings, so a
    /// change must see the one before it.
    ///
    /// The lock and the tick ensure that. Under the lock, no other change is proposed in this term. Once the tick is
    /// applied, everything proposed before it is applied or lost, and any committed entry of an earlier term lies
    /// before the tick.
    pub(crate) async fn set(&self, setting: &Setting, value: &str) -> Result<(Settings, Settings), Refusal> {
        let _one_at_a_time = self.changing.lock().await;
        let leading = self.coordinator.lead().await?;
        // A change whose caller gave up may lie in the log ahead of this one. It is applied once the tick is.
        self.coordinator.propose(&leading, &Request::tick()).await?;
        let Replicated { settings: before, version } = self.replicated();
        if version == 0 {
            return Err(Refusal::Busy("the cluster has just formed and has no settings yet".into()));
        }
        let mut after = before.clone();
        setting.set(&mut after, value).map_err(|error| Refusal::Invalid(error.to_string()))?;
        if after != before {
            self.coordinator.propose(&leading, &Request::set_settings(after.clone())).await?;
            let (old, new) = (setting.value(&before), setting.value(&after));
            tracing::info!(setting = setting.name, old, new, "the cluster's setting was changed");
        }
        leading.adopt(&after);
        Ok((before, after))
    }

    /// Raises the cluster version to the highest that every member's build supports. Returns the old and the new
    /// version.
    ///
    /// Unless it is forced, it does not leave behind clients and stores of older builds.
    pub(crate) async fn finish_upgrade(&self, force: bool) -> Result<(u32, u32), Refusal> {
        let leading = self.coordinator.lead().await?;
        let supported = self.supported_versions().await?;
        let _one_at_a_time = self.changing.lock().await;
        if self.replicated().version == 0 {
            // As in `set`: entries that lie before the tick in the log are applied once the tick is.
            self.coordinator.propose(&leading, &Request::tick()).await?;
        }
        let before = self.replicated().version;
        let after = raised(before, &supported).map_err(Refusal::Invalid)?;
        if after > before {
            if !force {
                let outdated = leading.outdated.heard(leading.elapsed());
                none_left_behind(leading.age(), &outdated).map_err(Refusal::Invalid)?;
            }
            if before == 0 {
                // The cluster has just formed. Once it has a version, no leader seeds its settings any more.
                self.coordinator.propose(&leading, &Request::set_settings(self.seed.clone())).await?;
                leading.adopt(&self.seed);
            }
            self.seed_level(&leading, after).await?;
            self.coordinator.propose(&leading, &Request::set_cluster_version(after)).await?;
            tracing::info!(from = before, to = after, "the cluster version was raised");
        }
        Ok((before, after))
    }

    /// Logs the settings from this master's flags, and the version, for a cluster that has just formed.
    ///
    /// Such a cluster begins with version 0 and built-in settings. Returns true if there was nothing to log.
    pub(crate) async fn seed(&self, leading: &Leading) -> Result<bool, Refusal> {
        if self.replicated().version > 0 {
            return Ok(true);
        }
        let version = self.first_version().await;
        // Someone may have finished the upgrade meanwhile, and changed a setting since.
        let _one_at_a_time = self.changing.lock().await;
        if self.replicated().version > 0 {
            return Ok(false);
        }
        self.coordinator.propose(leading, &Request::set_settings(self.seed.clone())).await?;
        // This term began with the built-in settings. Its soft state stays, because that has its leases.
        leading.adopt(&self.seed);
        self.seed_level(leading, version).await?;
        self.coordinator.propose(leading, &Request::set_cluster_version(version)).await?;
        Ok(false)
    }

    /// Logs the first level of TLS of a cluster that is about to run as `version`: that of this master, or `allow` if it has no
    /// certificate. Masters whose state has no level keep the one that they began with, which is `require`.
    async fn seed_level(&self, leading: &Leading, version: u32) -> Result<(), Refusal> {
        if version < SECURITY_SINCE || self.coordinator.security().level().is_some() {
            return Ok(());
        }
        let ours = self.tls.as_ref().filter(|tls| tls.id().is_some());
        let level = SecurityChange::Level(ours.map_or(TlsLevel::Allow, |tls| tls.level()));
        self.coordinator.propose(leading, &Request::set_security(level)).await.map(drop)
    }

    /// Version with which a cluster that has just formed begins: the highest that every member's build supports.
    /// Version 1, which every build supports, if a member does not answer.
    async fn first_version(&self) -> u32 {
        match self.supported_versions().await {
            Ok(supported) => supported.into_values().fold(CLUSTER_VERSION, u32::min).max(1),
            Err(why) => {
                tracing::warn!(
                    "the new cluster runs as version 1 until `mcctl upgrade finish` raises it: {why}"
                );
                1
            }
        }
    }

    /// Highest cluster version that each member's build supports. Fails unless every member answers.
    async fn supported_versions(&self) -> Result<BTreeMap<NodeId, u32>, Refusal> {
        let mut supported = BTreeMap::from([(self.raft.node_id(), CLUSTER_VERSION)]);
        for (node, addresses) in self.raft.members() {
            // At a reserved address there is no build. The next one there is looked at before it is taken in.
            if node == self.raft.node_id() || addresses.is_reserved() {
                continue;
            }
            let raft = &addresses.raft;
            let answer = match HostPort::parse(raft, 0) {
                Ok(address) => self.formation.who_is_at(&address).await,
                Err(error) => Err(error.to_string()),
            };
            match answer {
                Ok(answer) if answer.node == node => supported.insert(node, answer.cluster_version_max),
                Ok(_) => {
                    return Err(Refusal::Busy(format!("another node than member {node} answers at {raft}")));
                }
                Err(why) => {
                    return Err(Refusal::Invalid(format!(
                        "master {node} at {raft} does not answer ({why}): what its build supports is not known; start \
                         it, or remove it with `mcctl members remove {node}`"
                    )));
                }
            };
        }
        Ok(supported)
    }

    fn replicated(&self) -> Replicated {
        self.coordinator.read(|applied| Replicated {
            settings: applied.state.settings().clone(),
            version: applied.state.cluster_version(),
        })
    }
}

/// Returns the cluster version after `before`: the highest that all builds support. If some builds hold it down while
/// others support more, the error names them, because the caller believes that they were upgraded.
fn raised(before: u32, supported: &BTreeMap<NodeId, u32>) -> Result<u32, String> {
    let lowest = supported.values().copied().min().unwrap_or(before);
    if lowest > before || supported.values().all(|supports| *supports == before) {
        return Ok(lowest);
    }
    let behind = supported.iter().filter(|(_, supports)| **supports == lowest);
    let behind: Vec<_> = behind.map(|(node, _)| node.to_string()).collect();
    Err(format!(
        "the build of master {} supports cluster version {lowest} at most, the cluster is at {before}: upgrade it",
        behind.join(", ")
    ))
}

/// Refuses to raise the version while clients or stores of older builds are in use, or may have been under an earlier leader.
fn none_left_behind(led: Duration, outdated: &[OutdatedCaller]) -> Result<(), String> {
    if led < HEARD_WITHIN {
        return Err(format!(
            "the leader has led for {} s only and cannot know yet which clients and stores are of older builds: try \
             again when it has led for {} s, or finish with --force",
            led.as_secs(),
            HEARD_WITHIN.as_secs()
        ));
    }
    let Some(latest) = outdated.first() else { return Ok(()) };
    let who = match latest.as_store() {
        Some(store) => format!("store {store}"),
        None => format!("client {}", latest.client),
    };
    let host = latest.host.map(|host| format!(" at {host}")).unwrap_or_default();
    Err(format!(
        "{} clients or stores of older builds were in use within the last minute, {who}{host} last, and their puts may \
         fail afterwards: upgrade them (`mcctl upgrade status` lists them), or finish with --force",
        outdated.len()
    ))
}

#[cfg(test)]
mod tests {
    use mc_types::{ClientId, StoreId};

    use super::*;

    #[test]
    fn nobody_who_called_within_a_minute_is_left_behind() {
        const CLIENT: u128 = u128::MAX / 3;
        let minute = HEARD_WITHIN;
        let caller = |client| OutdatedCaller {
            client: ClientId(client),
            host: Some([10, 0, 0, 7].into()),
            version_max: 1,
            at: Duration::ZERO,
        };
        assert_eq!(none_left_behind(minute, &[]), Ok(()));
        let why = none_left_behind(minute, &[caller(2), caller(CLIENT)]).unwrap_err();
        assert!(
            why.starts_with("2 clients") && why.contains(&format!("store {} at 10.0.0.7", StoreId(2))),
            "{why}"
        );
        let why = none_left_behind(minute, &[caller(CLIENT)]).unwrap_err();
        assert!(why.contains(&format!("client {}", ClientId(CLIENT))), "{why}");
        let why = none_left_behind(Duration::from_secs(59), &[]).unwrap_err();
        assert!(why.contains("has led for 59 s only"), "{why}");
    }

    #[test]
    fn the_version_is_raised_to_what_all_builds_support_and_who_holds_it_down_is_named() {
        let raised = |before, supported: [u32; 3]| {
            raised(before, &(1..).map(NodeId).zip(supported).collect::<BTreeMap<_, _>>())
        };
        assert_eq!(raised(1, [2, 3, 2]), Ok(2));
        assert_eq!(raised(2, [2, 2, 2]), Ok(2), "it is raised already");
        for (before, supported) in [(1, [2, 1, 2]), (2, [3, 1, 2])] {
            let why = raised(before, supported).unwrap_err();
            assert!(why.contains(&format!("master {} supports cluster version 1", NodeId(2))), "{why}");
            assert!(!why.contains(&NodeId(3).to_string()), "{why}");
        }
    }
}
