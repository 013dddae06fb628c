//! The files in deploy are those that `mcctl monitoring` writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLESS: &str = "MC_BLESS=1 cargo test -p mc-cli --test it monitoring";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Runs `mcctl monitoring`, and returns the files that it reports.
fn write(dir: &Path) -> Vec<PathBuf> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_mcctl")).args(["monitoring", "--json"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = document["files"].as_array().unwrap().iter();
    files.map(|file| PathBuf::from(file.as_str().unwrap())).collect()
}

/// The files of a folder by name.
fn texts(dir: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display()));
    let file = |path: PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
    };
    files.map(|entry| file(entry.unwrap().path())).collect()
}

#[test]
fn the_files_in_deploy_are_those_that_this_build_writes() {
    let dir = tempfile::tempdir().unwrap();
    let written = write(dir.path());
    assert_eq!(written.len(), 5, "{written:?}");
    if std::env::var_os("MC_BLESS").is_some() {
        for board in texts(&deploy().join("grafana")).keys() {
            fs::remove_file(deploy().join("grafana").join(board)).unwrap();
        }
        write(&deploy());
    }
    let (boards, generated) = (texts(&deploy().join("grafana")), texts(&dir.path().join("grafana")));
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&boards), names(&generated), "to write them: {BLESS}");
    let mut files: Vec<_> = boards.keys().map(|name| format!("grafana/{name}")).collect();
    files.push("prometheus/alerts.yml".to_owned());
    for file in files {
        let [kept, built] =
            [deploy(), dir.path().to_owned()].map(|dir| fs::read_to_string(dir.join(&file)).unwrap());
        assert!(kept == built, "deploy/{file} is not the file of this build; to write it: {BLESS}");
    }
}

/// The sections of docs/operations.md that panels name by heading, and alerts by anchor.
#[test]
fn every_section_that_a_panel_or_an_alert_names_is_in_the_operations_page() {
    let page = fs::read_to_string(deploy().join("../docs/operations.md")).unwrap();
    let headings: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| line.trim_matches(['#', ' ']))
        .collect();
    let mut named = 0;
    for (board, text) in texts(&deploy().join("grafana")) {
        let parts = text.split("See \\\"").skip(1);
        for section in parts.map(|part| part.split("\\\" in docs/operations.md").next().unwrap()) {
            assert!(headings.contains(&section), "{board} names the section {section:?}");
            named += 1;
        }
    }
    assert!(named > 10, "{named} sections are named");

    let anchor = |heading: &&str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
    };
    let anchors: Vec<_> = headings.iter().map(anchor).collect();
    let rules = fs::read_to_string(deploy().join("prometheus/alerts.yml")).unwrap();
    let (alerts, runbooks) = (rules.matches("- alert: ").count(), rules.matches("runbook: ").count());
    assert!(alerts > 0 && alerts == runbooks, "{runbooks} of {alerts} alerts name a section");
    for part in rules.split("docs/operations.md#").skip(1) {
        let section = part.split('"').next().unwrap();
        assert!(anchors.iter().any(|anchor| anchor == section), "an alert names the section {section:?}");
    }
}
