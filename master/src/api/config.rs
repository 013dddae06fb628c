//! The replicated settings and the cluster version.

use std::collections::BTreeMap;

use mc_index::{CLUSTER_VERSION, Op, Settings};
use mc_proto::v1;
use mc_types::{HostPort, NodeId};

use super::Refusal;
use crate::leader::Coordinator;
use crate::setting::{SETTINGS, Setting};

impl Coordinator {
    pub(crate) async fn get_config(&self) -> Result<v1::GetConfigReply, Refusal> {
        self.lead().await?;
        let (settings, cluster_version) = self.replicated();
        let settings = SETTINGS.iter().map(|setting| message(setting, &settings)).collect();
        Ok(v1::GetConfigReply { settings, cluster_version })
    }

    /// Changes one setting. Two changes at the same time are made one after the other, here and by the next leader: an
    /// entry holds all settings, so that the second must see the first.
    ///
    /// It does: under the lock nobody else proposes any in this term, all that was proposed before the tick is applied or
    /// lost when the tick is, and an entry of an earlier term that is committed lies before it.
    pub(crate) async fn set_config(
        &self,
        request: &v1::SetConfigRequest,
    ) -> Result<v1::SetConfigReply, Refusal> {
        let setting = Setting::named(&request.name).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let _one_at_a_time = self.configuring.lock().await;
        let leading = self.lead().await?;
        // One that nobody waited for any more may be in the log ahead of this: it is applied when the tick is.
        self.propose(&leading, Op::Tick).await?;
        let (before, version) = self.replicated();
        if version == 0 {
            return Err(Refusal::Busy("the cluster has just formed and has no settings yet".into()));
        }
        let mut after = before.clone();
        setting.set(&mut after, &request.value).map_err(|error| Refusal::Invalid(error.to_string()))?;
        if after != before {
            self.propose(&leading, Op::SetSettings(after.clone())).await?;
            let (old, new) = (setting.value(&before), setting.value(&after));
            tracing::info!(setting = setting.name, old, new, "the cluster's setting was changed");
        }
        leading.adopt(&after);
        Ok(v1::SetConfigReply {
            before: Some(message(setting, &before)),
            after: Some(message(setting, &after)),
        })
    }

    /// Raises the cluster version to the highest that the build of every member supports.
    pub(crate) async fn finish_upgrade(&self) -> Result<v1::FinishUpgradeReply, Refusal> {
        let leading = self.lead().await?;
        let supported = self.supported_versions().await?;
        let _one_at_a_time = self.configuring.lock().await;
        if self.replicated().1 == 0 {
            // As for a changed setting: what lies before this in the log is applied when the tick is.
            self.propose(&leading, Op::Tick).await?;
        }
        let (_, before) = self.replicated();
        let after = raised(before, &supported).map_err(Refusal::Invalid)?;
        if after > before {
            if before == 0 {
                // The cluster has just formed, and once it has a version nobody seeds its settings any more.
                self.propose(&leading, Op::SetSettings(self.seed.clone())).await?;
            }
            self.propose(&leading, Op::SetClusterVersion(after)).await?;
            tracing::info!(from = before, to = after, "the cluster version was raised");
        }
        if before == 0 {
            // What this term holds was made with the built-in settings.
            self.step_down();
        }
        Ok(v1::FinishUpgradeReply { before, after })
    }

    /// The version that a cluster which has just formed begins with: the highest that the build of every member supports.
    /// Where not all answer, the first one, which every build does.
    pub(crate) async fn first_version(&self) -> u32 {
        if CLUSTER_VERSION == 1 {
            return 1;
        }
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

    /// The highest cluster version that each member's build supports: all must answer.
    async fn supported_versions(&self) -> Result<BTreeMap<NodeId, u32>, Refusal> {
        let mut supported = BTreeMap::from([(self.raft.node_id(), CLUSTER_VERSION)]);
        for (node, addresses) in self.raft.members() {
            if node == self.raft.node_id() {
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

    fn replicated(&self) -> (Settings, u32) {
        self.index.read(|applied| (applied.state.settings().clone(), applied.state.cluster_version()))
    }
}

/// The cluster version after `before`: the highest that all builds support. Builds that hold it down while others
/// support more are named: who asks takes them for upgraded.
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

fn message(setting: &Setting, settings: &Settings) -> v1::Setting {
    v1::Setting {
        name: setting.name.to_owned(),
        value: setting.value(settings),
        default_value: setting.value(&Settings::default()),
        help: setting.help.to_owned(),
        fixed: setting.is_fixed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
