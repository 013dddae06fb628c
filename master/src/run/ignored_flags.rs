//! Warnings about flags that have no effect because the cluster's replicated settings differ, so that no operator believes
//! them to be in force.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_index::Settings;
use mc_process::config::{Loaded, Origin};
use tokio_util::sync::CancellationToken;

use crate::config::{MasterArgs, SETTINGS};
use crate::leader::Coordinator;

/// Interval at which to check whether the settings are known.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A flag whose value differs from the cluster's setting.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IgnoredFlag {
    flag: &'static str,
    value: String,
    origin: Origin,
    cluster: String,
}

impl fmt::Display for IgnoredFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, value, origin, cluster } = self;
        write!(
            f,
            "--{flag} {value} ({origin}) differs from the cluster's setting {cluster}: the cluster's value is kept, the \
             flag is for a cluster that forms; `mcctl config set {flag} {value}` changes the cluster's"
        )
    }
}

fn ignored_flags(given: &Loaded<MasterArgs>, cluster: &Settings) -> Vec<IgnoredFlag> {
    let ours = given.args.settings();
    let differing = SETTINGS.iter().filter(|setting| setting.value(&ours) != setting.value(cluster));
    differing
        .filter_map(|setting| {
            // Settings without a flag are skipped.
            let origin = given.origin(setting.name).filter(|origin| **origin != Origin::Default)?.clone();
            let (value, cluster) = (setting.value(&ours), setting.value(cluster));
            Some(IgnoredFlag { flag: setting.name, value, origin, cluster })
        })
        .collect()
}

/// Warns of each ignored flag once, as soon as the cluster's settings are known here.
pub(crate) async fn warn(given: Loaded<MasterArgs>, coordinator: Arc<Coordinator>, stop: CancellationToken) {
    let known = async {
        loop {
            if let Some(settings) = coordinator.known_settings() {
                return settings;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let Some(settings) = stop.run_until_cancelled(known).await else { return };
    for ignored in ignored_flags(&given, &settings) {
        tracing::warn!("{ignored}");
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;
    use mc_process::config;

    use super::*;
    use mc_index::ReadPolicy;

    fn given(args: &[&str], env: &[(&str, &str)]) -> Loaded<MasterArgs> {
        let args = ["mc-master"].iter().chain(args).map(OsString::from);
        let env = |name: &str| Some(env.iter().find(|(key, _)| *key == name)?.1.into());
        config::load(MasterArgs::command(), args, env).unwrap()
    }

    fn said(given: &Loaded<MasterArgs>, cluster: &Settings) -> Vec<String> {
        ignored_flags(given, cluster).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_given_and_differs_is_named_with_its_origin_and_the_value_in_force() {
        let given =
            given(&["--read-lease", "20s", "--store-ttl", "10m"], &[("MC_READ_POLICY", "read-index")]);
        assert_eq!(
            said(&given, &Settings::default()),
            [
                "--read-lease 20s (flag) differs from the cluster's setting 10s: the cluster's value is kept, the flag \
                 is for a cluster that forms; `mcctl config set read-lease 20s` changes the cluster's",
                "--read-policy read-index (env MC_READ_POLICY) differs from the cluster's setting lease: the cluster's \
                 value is kept, the flag is for a cluster that forms; `mcctl config set read-policy read-index` changes \
                 the cluster's",
            ],
            "--store-ttl is what the cluster has"
        );
    }

    #[test]
    fn defaults_differ_in_silence() {
        let cluster =
            Settings { read_lease_ms: 5_000, read_policy: ReadPolicy::ReadIndex, ..Settings::default() };
        assert!(said(&given(&[], &[]), &cluster).is_empty());
    }

    #[test]
    fn every_flag_that_is_called_a_cluster_setting_is_compared() {
        let command = MasterArgs::command();
        let help = |arg: &clap::Arg| arg.get_help().map(ToString::to_string).unwrap_or_default();
        let called = command.get_arguments().filter(|arg| help(arg).contains("cluster setting"));
        let called: Vec<_> = called.filter_map(clap::Arg::get_long).collect();
        assert!(called.len() >= 4, "{called:?}");
        let compared = SETTINGS.map(|setting| setting.name);
        assert!(called.iter().all(|flag| compared.contains(flag)), "{called:?}");
    }
}
