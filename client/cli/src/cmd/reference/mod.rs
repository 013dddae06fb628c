//! `mcctl reference`: prints docs/reference.md, the flags, settings, ports and metrics of this build.

mod flags;
mod markdown;
mod paths;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use mc_master::{MasterArgs, SettingReference};
use mc_process::config;
use mc_types::Metric;
use serde::Serialize;

use flags::{Fallback, Flag};
use markdown::{code, table};
use mc_console::{Ended, Output};

const INTRODUCTION: &str = "\
# Reference

Flags, settings, ports and metrics, for looking up. `mcctl reference` prints this page as it is for your build.
Procedures are in [operations.md](operations.md).

The page is generated from the code: change the code, then regenerate the page with
`MC_BLESS=1 cargo test -p mc-cli --test it reference`.";

const VALUES: &str = "\
## Flags

`mc-master` and `mc-store` take a value from the flag, else from the environment variable, else from the TOML file that
`--config` names, else from the default. The key in the file is the name of the flag without its leading dashes. A list
has commas, or is an array in the file; a flag without a value is `true` or `false` in both. An empty variable counts as
not set. `--print-config` prints each value and its source. `mcctl` reads no file, and only the variables listed.

| Value | Written as |
|---|---|
| `SIZE` | `4096`, `64kb`, `512mb`, `50gb`, `2tb`; the units are powers of 1,024 |
| `DURATION` | `500ms`, `5s`, `10m`, `2h` |
| `ADDRESSES` | host or host:port, with commas: `a,b:50051,[::1]:7` |";

const PORTS: &str = "\
## Ports

These are the default ports, and the flags that change them. A port without a default is open only with its flag. With
certificates each takes TLS (see [Security](security.md)); without, keep the ports inside a trusted network.";

const CALLS: &str = "\
## Calls

Who may make each call of the masters' gRPC ports where TLS is required. The users of a tenant, `tenant rw` and `tenant ro`,
reach its objects alone, and a store acts on stores of its name.";

const SETTINGS: &str = "\
## Cluster settings

The masters share these values. `mcctl config show` prints those in force; `mcctl config set NAME VALUE` changes one on
all masters. A flag of `mc-master` gives a setting its value in a cluster that forms, and has no effect later.";

const METRICS: &str = "\
## Metrics

A master and a store serve their metrics at `/metrics` of their `--http-listen` addresses. For the values to worry about,
see [Metrics](operations/metrics.md).";

const MOONCAKE_METRICS: &str = "\
### Metrics of mc-master under Mooncake's names

`/metrics?compat=mooncake` shows the metrics of Mooncake's master that have a meaning here, as sums of those above, for dashboards that
ask for them. Where Mooncake counts operations of one key and of a batch apart, clients of mc only send batches.";

const CLIENT_METRICS: &str = "\
### Metrics of a client

The client library serves no HTTP. It reports to the recorder that its process installs with the `metrics` crate, as the
sum over all clients of the process; without a recorder it reports nothing. `Client::stats` returns the same counts for
one client, with times as sums in nanoseconds.";

#[derive(Serialize)]
struct Document {
    page: String,
}

pub(crate) fn reference(mcctl: Command, output: Output) -> Result<Ended> {
    let document = Document { page: page(mcctl)? };
    output.result(&document, || document.page.clone());
    Ok(Ended::Well)
}

fn page(mut mcctl: Command) -> Result<String> {
    let (mut master, mut store) = (MasterArgs::command(), mc_store_server::command());
    for command in [&mut master, &mut store, &mut mcctl] {
        command.build();
    }
    let master_flags = flags::of(&master, config::variable);
    let store_flags = flags::of(&store, config::variable);
    // mcctl reads no config file; the help of a flag names its variable.
    let mcctl_flags = flags::of(&mcctl, |_| None);
    let parts = [
        INTRODUCTION.to_owned(),
        VALUES.to_owned(),
        process(&master, &master_flags),
        process(&store, &store_flags),
        process(&mcctl, &mcctl_flags),
        commands(&mcctl),
        PORTS.to_owned(),
        ports(&[("mc-master", &master_flags), ("mc-store", &store_flags)])?,
        paths::section(),
        CALLS.to_owned(),
        calls(),
        SETTINGS.to_owned(),
        settings(&mc_master::settings_reference(), &master_flags),
        METRICS.to_owned(),
        metrics("mc-master", &mc_master::metrics_reference()),
        MOONCAKE_METRICS.to_owned(),
        mooncake_metrics(),
        metrics("mc-store", &mc_store_server::metrics_reference()),
        CLIENT_METRICS.to_owned(),
        metrics_table(&mc_client::metrics_reference()),
    ];
    Ok(parts.join("\n\n"))
}

/// Returns the section of one process: its purpose and its flags.
fn process(command: &Command, flags: &[Flag]) -> String {
    let name = command.get_name();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let rows = flags.iter().map(|flag| {
        [
            code(&flag.name),
            code(&flag.value),
            flag.default.to_string(),
            code(flag.variable.as_deref().unwrap_or_default()),
            flag.help.clone(),
        ]
    });
    format!(
        "### {name}\n\n{about}.\n\n{}",
        table(["Flag", "Value", "Default", "Environment", "Meaning"], rows)
    )
}

fn commands(mcctl: &Command) -> String {
    let rows = flags::commands(mcctl).into_iter().map(|(usage, about)| [code(&usage), about]);
    let table = table(["Command", "Meaning"], rows);
    format!("The flags above go with every command; `mcctl COMMAND --help` lists those of one.\n\n{table}")
}

/// Lists the default ports, from the defaults of the listen flags.
fn ports(processes: &[(&str, &[Flag])]) -> Result<String> {
    let mut rows = Vec::new();
    for (process, flags) in processes {
        for flag in flags.iter().filter(|flag| flag.name.ends_with("listen")) {
            let name = &flag.name;
            let port = match &flag.default {
                Fallback::Value(address) => {
                    let port = address.rsplit_once(':').map(|(_, port)| port);
                    port.with_context(|| format!("the default of {name} of {process} has no port"))?
                }
                _ => "none",
            };
            let (callers, protocol) = callers(process, name).with_context(|| {
                format!("no caller is listed for {name} of {process}: add it to callers()")
            })?;
            rows.push([port.to_owned(), code(process), code(name), callers.to_owned(), protocol.to_owned()]);
        }
    }
    Ok(table(["Port", "Process", "Flag", "Who connects", "Protocol"], rows))
}

/// Returns who connects to the port of a listen flag, and the protocol.
fn callers(process: &str, flag: &str) -> Option<(&'static str, &'static str)> {
    Some(match (process, flag) {
        ("mc-master", "--listen") => ("clients, stores, `mcctl`", "gRPC"),
        ("mc-master", "--raft-listen") => ("the other masters", "gRPC"),
        ("mc-store", "--listen") => ("clients, `mcctl`: the bytes of objects", "its own, over TCP"),
        ("mc-master", "--http-listen") => {
            ("Prometheus, probes, people, engines", "HTTP: [paths](#http-paths-of-a-master)")
        }
        ("mc-master", "--metadata-listen") => {
            ("engines made for Mooncake, probes", "HTTP: `/metadata`, `/health`")
        }
        ("mc-store", "--http-listen") => (
            "Prometheus, probes, people",
            "HTTP: `/metrics`, `/livez`, `/readyz`, `/status`, `/segments`, `/masters`",
        ),
        _ => return None,
    })
}

fn calls() -> String {
    let rows = mc_master::calls_reference().into_iter().map(|(call, callers)| [code(call), callers]);
    table(["Call", "Open to"], rows)
}

fn settings(settings: &[SettingReference], master_flags: &[Flag]) -> String {
    let rows = settings.iter().map(|SettingReference { name, default, range, help }| {
        let flag = format!("--{name}");
        let seeded = master_flags.iter().any(|known| known.name == flag);
        let flag = if seeded { code(&flag) } else { String::new() };
        [code(name), code(default), range.unwrap_or("fixed").to_owned(), flag, (*help).to_owned()]
    });
    table(["Setting", "Default", "Range", "Flag", "Meaning"], rows)
}

fn metrics(process: &str, metrics: &[Metric]) -> String {
    format!("### Metrics of {process}\n\n{}", metrics_table(metrics))
}

fn mooncake_metrics() -> String {
    let rows = mc_master::mooncake_metrics_reference();
    let shown = |source: String| if source.starts_with("mc_") { code(&source) } else { source };
    table(["Mooncake's metric", "Shows"], rows.into_iter().map(|(name, source)| [code(name), shown(source)]))
}

fn metrics_table(metrics: &[Metric]) -> String {
    let rows = metrics.iter().map(|metric| {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|(label, values)| {
                let values: Vec<_> = values.iter().map(String::as_str).collect();
                format!("{}: {}", code(label), values.join(", "))
            })
            .collect();
        [
            code(metric.name),
            metric.kind.to_string(),
            metric.unit().unwrap_or_default().to_owned(),
            labels.join("; "),
            metric.help.to_owned(),
        ]
    });
    table(["Metric", "Type", "Unit", "Labels", "Meaning"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_flag_without_a_listed_caller_is_an_error_that_names_it() {
        let flag = Flag {
            name: "--debug-listen".into(),
            value: "IP:PORT".into(),
            default: Fallback::Value("0.0.0.0:9999".into()),
            variable: None,
            help: String::new(),
        };
        let error = ports(&[("mc-master", &[flag])]).unwrap_err().to_string();
        assert!(error.contains("--debug-listen of mc-master"), "{error}");
    }
}
