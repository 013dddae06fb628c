//! `mcctl config show|set`: shows and changes the cluster settings.

use anyhow::Result;
use clap::Subcommand;
use mc_console::{Ended, Global, Output, columns, connect};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every setting with its default and its effect
    Show,
    /// Change a setting, for all masters at once
    Set {
        /// Name of the setting, as `config show` lists it
        name: String,
        /// New value
        value: String,
    },
}

#[derive(Serialize)]
struct Setting {
    name: String,
    value: String,
    default: String,
    /// Whether the setting is fixed, so that `config set` cannot change it.
    fixed: bool,
    help: String,
}

#[derive(Serialize)]
struct Shown {
    cluster_version: u32,
    settings: Vec<Setting>,
}

#[derive(Serialize)]
struct Changed {
    name: String,
    before: String,
    after: String,
}

pub(crate) async fn config(global: &Global, command: &ConfigCommand, output: Output) -> Result<Ended> {
    let admin = connect::client_of(global).await?.admin();
    match command {
        ConfigCommand::Show => {
            let reply = admin.config().await?;
            let settings = reply.settings.into_iter().map(setting).collect();
            let shown = Shown { cluster_version: reply.cluster_version, settings };
            output.result(&shown, || table(&shown));
        }
        ConfigCommand::Set { name, value } => {
            let (before, after) = admin.set_config(name, value).await?;
            let changed = Changed { name: name.clone(), before: before.value, after: after.value };
            output.result(&changed, || match changed.before == changed.after {
                true => format!("{name} is {} already", changed.after),
                false => format!("{name}: {} -> {}", changed.before, changed.after),
            });
        }
    }
    Ok(Ended::Well)
}

fn setting(setting: mc_client::Setting) -> Setting {
    let mc_client::Setting { name, value, default_value, help, fixed, .. } = setting;
    Setting { name, value, default: default_value, fixed, help }
}

fn table(shown: &Shown) -> String {
    let row = |Setting { name, value, default, fixed, help }: &Setting| {
        let help = if *fixed { format!("{help} (fixed)") } else { help.clone() };
        [name.clone(), value.clone(), default.clone(), help]
    };
    let rows = columns(["SETTING", "VALUE", "DEFAULT", "WHAT IT IS"], shown.settings.iter().map(row));
    format!("{rows}\ncluster version {}", shown.cluster_version)
}
