//! The boards and alerts in deploy, which `mcctl monitoring` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Runs `mcctl monitoring`, and returns the files that it reports.
fn write(dir: &Path) -> Vec<PathBuf> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_mcctl")).args(["monitoring", "--json"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
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
fn the_files_of_a_build_are_those_in_deploy() {
    let dir = tempfile::tempdir().unwrap();
    let written = write(dir.path());
    let mut files: Vec<_> =
        texts(&deploy().join("grafana")).into_keys().map(|name| format!("grafana/{name}")).collect();
    files.push("prometheus/alerts.yml".to_owned());
    assert_eq!(written.len(), files.len(), "{written:?}: add a board to FILES in cmd/monitoring.rs");
    for file in files {
        let [kept, built] =
            [deploy(), dir.path().to_owned()].map(|dir| fs::read_to_string(dir.join(&file)).unwrap());
        assert!(kept == built, "deploy/{file} is not the file of this build");
    }
}

/// The panels of every board, each with the name of its board.
fn panels() -> Vec<(String, Value)> {
    let mut panels = Vec::new();
    for (name, text) in texts(&deploy().join("grafana")) {
        let board: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        let stem = name.strip_suffix(".json").unwrap();
        assert_eq!(board["uid"], format!("mc-{stem}"), "{name}");
        assert!(board["title"].as_str().is_some_and(|title| title.starts_with("mc: ")), "{name}");
        assert!(board["description"].as_str().is_some_and(|about| about.ends_with('.')), "{name}");
        let on_board = board["panels"].as_array().unwrap_or_else(|| panic!("{name} has no panels"));
        panels.extend(on_board.iter().map(|panel| (name.clone(), panel.clone())));
    }
    panels
}

#[test]
fn every_panel_has_a_unit_a_text_and_lines_of_the_chosen_source() {
    for (board, panel) in panels() {
        let place = format!("{board}, {}", panel["title"]);
        assert!(panel["title"].is_string(), "{board}: a panel without a title");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["type"] == "stat" || panel["type"] == "timeseries", "{place}: {}", panel["type"]);
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{place}: no text");
        let field = &panel["fieldConfig"]["defaults"];
        let unit = field["unit"].as_str().unwrap_or_else(|| panic!("{place}: no unit"));
        assert!(["short", "bytes", "binBps", "cps", "s", "percentunit"].contains(&unit), "{place}: {unit}");
        // A value that is worth a look has a colour: one number by its background, a graph by a dashed line.
        let steps = field["thresholds"]["steps"].as_array().unwrap_or_else(|| panic!("{place}: no steps"));
        let shown = match panel["type"].as_str() {
            Some("stat") => panel["options"]["colorMode"] == "background",
            _ => field["custom"]["thresholdsStyle"]["mode"] == "dashed",
        };
        assert_eq!(steps.len() == 2, shown, "{place}: the steps and what shows them");
        let targets = panel["targets"].as_array().unwrap_or_else(|| panic!("{place}: nothing to draw"));
        assert!(!targets.is_empty(), "{place}: nothing to draw");
        let letters: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(letters.len(), targets.len(), "{place}: two lines of one letter");
        for source in targets.iter().map(|target| &target["datasource"]).chain([&panel["datasource"]]) {
            assert_eq!(source["uid"], "${datasource}", "{place}");
        }
    }
}

#[test]
fn panels_lie_on_the_grid_and_overlap_nowhere() {
    let mut taken: BTreeMap<(String, u64, u64), String> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for (board, panel) in panels() {
        let title = panel["title"].to_string();
        assert!(ids.insert((board.clone(), panel["id"].as_u64().unwrap())), "{board}, {title}: an id twice");
        let [x, y, width, height] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(width > 0 && height > 0 && x + width <= 24, "{board}, {title}: beyond the 24 columns");
        for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            let other = taken.insert((board.clone(), cell.0, cell.1), title.clone());
            assert_eq!(other, None, "{board}: {title} lies on it");
        }
    }
}

/// Names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("mc_")).map(str::to_owned).collect()
}

#[test]
fn every_metric_that_a_board_or_an_alert_names_exists() {
    let page = fs::read_to_string(deploy().join("../docs/reference.md")).unwrap();
    let is_listed = |name: &str| page.contains(&format!("\n| `{name}` |"));
    let exists = |name: &str| {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        is_listed(name) || of_histogram.is_some_and(is_listed)
    };
    let mut texts = texts(&deploy().join("grafana"));
    texts
        .insert("alerts.yml".to_owned(), fs::read_to_string(deploy().join("prometheus/alerts.yml")).unwrap());
    for (file, text) in texts {
        let named = metrics(&text);
        assert!(named.len() > 5, "{file}: {named:?}");
        let missing: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
        assert_eq!(missing, [""; 0], "{file} names them, docs/reference.md does not");
    }
}

/// The lines of an alert, in their order: a small part of YAML, which needs no parser. Texts are quoted as in JSON.
#[test]
fn every_alert_has_a_condition_a_duration_a_severity_a_summary_and_a_runbook() {
    let text = fs::read_to_string(deploy().join("prometheus/alerts.yml")).unwrap();
    let mut lines = text.lines();
    for head in ["# ", "groups:", "  - name: mc", "    rules:"] {
        let line = lines.next().unwrap();
        assert!(line.starts_with(head), "{line:?} where {head:?} belongs");
    }
    let mut names = BTreeSet::new();
    while let Some(line) = lines.next() {
        let name =
            line.strip_prefix("      - alert: Mc").unwrap_or_else(|| panic!("{line:?} begins no alert"));
        assert!(names.insert(name), "two alerts are Mc{name}");
        let mut value = |key: &str| {
            let line = lines.next().unwrap_or_else(|| panic!("Mc{name} ends before {key:?}"));
            line.strip_prefix(key)
                .unwrap_or_else(|| panic!("Mc{name}: {line:?} where {key:?} belongs"))
                .to_owned()
        };
        let quoted = |text: String| {
            let text: String =
                serde_json::from_str(&text).unwrap_or_else(|why| panic!("Mc{name}: {text}: {why}"));
            assert!(!text.is_empty(), "Mc{name}: an empty text");
            text
        };
        quoted(value("        expr: "));
        let lasts = value("        for: ");
        let (number, unit) = lasts.split_at(lasts.len() - 1);
        assert!(number.parse::<u32>().is_ok() && ["s", "m", "h"].contains(&unit), "Mc{name}: for {lasts}");
        value("        labels:");
        let severity = value("          severity: ");
        assert!(["critical", "warning"].contains(&severity.as_str()), "Mc{name}: {severity}");
        value("        annotations:");
        assert!(quoted(value("          summary: ")).ends_with('.'), "Mc{name}: the summary is no sentence");
        assert!(
            quoted(value("          runbook: ")).starts_with("docs/operations/"),
            "Mc{name}: the runbook"
        );
    }
    assert!(names.len() > 5, "{names:?}");
}

/// The headings of each page of docs/operations, by the path that panels and alerts give.
fn headings() -> BTreeMap<String, Vec<String>> {
    let of = |text: String| {
        let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
        lines.map(|line| line.trim_matches(['#', ' ']).to_owned()).collect()
    };
    let pages = texts(&deploy().join("../docs/operations"));
    pages.into_iter().map(|(name, text)| (format!("docs/operations/{name}"), of(text))).collect()
}

/// Panels name a section by its heading and its page, alerts by the page and the anchor.
#[test]
fn every_section_that_a_panel_or_an_alert_names_is_on_the_page_that_it_names() {
    let pages = headings();
    let mut named = 0;
    for (board, text) in texts(&deploy().join("grafana")) {
        for part in text.split("See \\\"").skip(1) {
            let (section, rest) = part.split_once("\\\" in ").unwrap();
            let (page, _) = rest.split_once(".\"").unwrap();
            let on_page = pages.get(page).is_some_and(|headings| headings.iter().any(|one| one == section));
            assert!(on_page, "{board} names the section {section:?} of {page}");
            named += 1;
        }
    }
    assert!(named > 10, "{named} sections are named");

    let anchor = |heading: &String| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
    };
    let rules = fs::read_to_string(deploy().join("prometheus/alerts.yml")).unwrap();
    let alerts = rules.matches("- alert: ").count();
    let runbooks: Vec<_> =
        rules.split("runbook: \"").skip(1).map(|part| part.split('"').next().unwrap()).collect();
    assert!(alerts > 0 && alerts == runbooks.len(), "{} of {alerts} alerts name a section", runbooks.len());
    for runbook in runbooks {
        let (page, section) = runbook.split_once('#').unwrap_or((runbook, ""));
        let on_page =
            pages.get(page).is_some_and(|headings| headings.iter().any(|one| anchor(one) == section));
        assert!(on_page, "an alert names {runbook}");
    }
}
