use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::{Cluster, mcctl_exe};

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `mcctl` against a cluster; returns its exit code and its output: standard output, then standard error.
pub async fn mcctl(cluster: &Cluster, args: &[&str]) -> (i32, String) {
    let folder = cluster.certificates().map_or_else(|| PathBuf::from("none"), |some| some.of("admin/mcctl"));
    mcctl_as(cluster, &folder, args).await
}

/// [`mcctl`] with the certificates in `folder`.
pub async fn mcctl_as(cluster: &Cluster, folder: &Path, args: &[&str]) -> (i32, String) {
    let mut command = tokio::process::Command::new(mcctl_exe());
    command
        .args(args)
        .env("MC_TLS_DIR", folder)
        .env("MC_MASTERS", cluster.addresses())
        .env_remove("MC_CONFIG")
        .kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended
        .unwrap_or_else(|_| panic!("mcctl {args:?} did not end within {PATIENCE:?}"))
        .expect("mcctl runs");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}
