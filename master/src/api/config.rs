//! The replicated settings and the cluster version.

use mc_index::Settings;
use mc_proto::v1;

use crate::config::{SETTINGS, Setting};
use crate::leader::{Configuration, Refusal, Replicated};

pub(super) async fn get(configuration: &Configuration) -> Result<v1::GetConfigReply, Refusal> {
    let Replicated { settings, version } = configuration.get().await?;
    let settings = SETTINGS.iter().map(|setting| message(setting, &settings)).collect();
    Ok(v1::GetConfigReply { settings, cluster_version: version })
}

pub(super) async fn set(
    configuration: &Configuration,
    request: &v1::SetConfigRequest,
) -> Result<v1::SetConfigReply, Refusal> {
    let setting = Setting::named(&request.name).map_err(|error| Refusal::Invalid(error.to_string()))?;
    let (before, after) = configuration.set(setting, &request.value).await?;
    Ok(v1::SetConfigReply { before: Some(message(setting, &before)), after: Some(message(setting, &after)) })
}

pub(super) async fn finish_upgrade(
    configuration: &Configuration,
    request: &v1::FinishUpgradeRequest,
) -> Result<v1::FinishUpgradeReply, Refusal> {
    let (before, after) = configuration.finish_upgrade(request.force).await?;
    Ok(v1::FinishUpgradeReply { before, after })
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
