//! The replicated settings and the cluster version.

use std::collections::BTreeMap;

use mc_base::{HostPort, NodeId};
use mc_proto::v1;

use super::Refusal;
use crate::leader::Coordinator;
use crate::setting::{SETTINGS, Setting};
use crate::state::{CLUSTER_VERSION, Op, Settings};

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
        let (_, before) = self.replicated();
        let mut highest = CLUSTER_VERSION;
        for (node, supports) in self.supported_versions().await? {
            if supports < before {
                return Err(Refusal::Invalid(format!(
                    "master {node} supports cluster version {supports} and the cluster is at {before}: upgrade it"
                )));
            }
            highest = highest.min(supports);
        }
        if highest > before {
            self.propose(&leading, Op::SetClusterVersion(highest)).await?;
            tracing::info!(from = before, to = highest, "the cluster version was raised");
        }
        Ok(v1::FinishUpgradeReply { before, after: highest.max(before) })
    }

    /// The highest cluster version that each other member's build supports: all must answer.
    async fn supported_versions(&self) -> Result<BTreeMap<NodeId, u32>, Refusal> {
        let mut supported = BTreeMap::new();
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

fn message(setting: &Setting, settings: &Settings) -> v1::Setting {
    v1::Setting {
        name: setting.name.to_owned(),
        value: setting.value(settings),
        default_value: setting.value(&Settings::default()),
        help: setting.help.to_owned(),
        fixed: setting.is_fixed(),
    }
}
