//! The boards and alerts in `deploy`, judged by the metrics of a live cluster.

use std::collections::BTreeSet;
use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;

use mc_client::{Client, Put};
use mc_tests::{Cluster, Expression, Scrape, Series, http_get, until, value};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Endings of the names of counts, indexes and flags. All other gauges and histograms end in a unit.
const WITHOUT_UNIT: [&str; 18] = [
    "_tls_level",
    "_objects",
    "_groups",
    "_stores",
    "_in_flight",
    "_waiting",
    "_leases",
    "_entries",
    "_connections",
    "_connections_limit",
    "_index",
    "_term",
    "_is_leader",
    "_has_leader",
    "_can_write",
    "_votes_late",
    "_ready",
    "_start",
];
const UNITS: [&str; 3] = ["_seconds", "_bytes", "_ratio"];

/// An expression of a board or an alert.
struct Query {
    /// The file and the panel, variable or alert.
    place: String,
    expression: Expression,
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

/// Every expression of a board: those of its panels, variables and annotations.
fn board(path: &Path) -> Vec<Query> {
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    let board: Value = serde_json::from_str(&read(path)).unwrap();
    let variables = list(&board["templating"]["list"]);
    let query = |place: &str, mut expression: String, legend: &str| {
        for variable in variables {
            expression = expression.replace(&format!("${}\"", text(&variable["name"])), ".*\"");
        }
        let place = format!("{file}, {place}");
        let mut expression = Expression::parse(&expression).unwrap_or_else(|why| panic!("{place}: {why}"));
        let labels = legend.split("{{").skip(1).filter_map(|part| part.split("}}").next());
        expression.labels.extend(labels.map(str::to_owned));
        Query { place, expression }
    };
    let mut queries = Vec::new();
    for panel in list(&board["panels"]).iter().filter(|panel| panel["type"] != "row") {
        let title = text(&panel["title"]);
        assert!(text(&panel["description"]).ends_with('.'), "{file}, {title}: no description");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{file}, {title}: no unit");
        let targets = list(&panel["targets"]).iter();
        queries.extend(
            targets
                .map(|target| query(title, text(&target["expr"]).to_owned(), text(&target["legendFormat"]))),
        );
    }
    for selector in queries.iter().flat_map(|query| &query.expression.selectors) {
        for label in ["job", "instance"] {
            let limited = selector.matchers.iter().any(|matcher| matcher.label == label);
            assert!(limited, "{file}: {selector} is not limited by the variable {label}");
        }
    }
    for annotation in list(&board["annotations"]["list"]) {
        queries.push(query("annotation", text(&annotation["expr"]).to_owned(), ""));
    }
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let values = text(&variable["definition"]).strip_prefix("label_values(").unwrap();
        let (selector, label) = values.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        queries.push(query(&format!("variable {label}"), selector.to_owned(), &format!("{{{{{label}}}}}")));
    }
    queries
}

/// Every expression of the alert rules.
fn alerts() -> Vec<Query> {
    let text = read(&deploy("prometheus/alerts.yml"));
    let mut queries: Vec<Query> = Vec::new();
    let mut name = "";
    for line in text.lines().map(str::trim) {
        if let Some(alert) = line.strip_prefix("- alert: ") {
            name = alert;
        } else if let Some(quoted) = line.strip_prefix("expr: ") {
            let place = format!("alert {name}");
            let text: String = serde_json::from_str(quoted).unwrap_or_else(|why| panic!("{place}: {why}"));
            let expression = Expression::parse(&text).unwrap_or_else(|why| panic!("{place}: {why}"));
            queries.push(Query { place, expression });
        } else if let Some((_, label)) = line.split_once("$labels.") {
            let label = label.split(' ').next().unwrap().to_owned();
            queries.last_mut().unwrap().expression.labels.insert(label);
        }
    }
    queries
}

fn queries() -> Vec<Query> {
    let boards = fs::read_dir(deploy("grafana")).unwrap().map(|entry| entry.unwrap().path());
    let mut queries: Vec<_> = boards.flat_map(|path| board(&path)).collect();
    queries.extend(alerts());
    queries
}

/// The names of the jobs of masters and of stores in the configuration of Prometheus.
fn jobs() -> [String; 2] {
    let text = read(&deploy("prometheus/scrape.yml"));
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("- job_name: "));
    let names: Vec<_> = names.map(str::to_owned).collect();
    names.try_into().expect("a job of masters and one of stores")
}

async fn scrape(job: &str, address: &str) -> Scrape {
    let (code, page) = http_get(address, "/metrics").await.unwrap();
    assert_eq!(code, 200, "{address}");
    Scrape::parse(&page, job, address)
}

/// Connects a client whose metrics are on the page that the returned handle renders.
async fn client_with_metrics(cluster: &Cluster) -> (Client, impl Fn() -> Scrape + use<>) {
    let recorder = PrometheusBuilder::new().set_buckets(&[0.1, 1.0]).unwrap().build_recorder();
    let mut connects = pin!(cluster.client());
    let client =
        poll_fn(|context| metrics::with_local_recorder(&recorder, || connects.as_mut().poll(context))).await;
    let handle = recorder.handle();
    (client, move || {
        handle.run_upkeep();
        Scrape::parse(&handle.render(), "engine", "engine:8000")
    })
}

/// Lists metrics without help, or whose name does not end as their type and unit demand.
fn badly_described(scrape: &Scrape) -> Vec<String> {
    let mut bad = Vec::new();
    for (name, family) in scrape.families.iter().filter(|(name, _)| name.starts_with("mc_")) {
        let ends_well = match family.kind.as_str() {
            "counter" => name.ends_with("_total"),
            _ => UNITS.iter().chain(&WITHOUT_UNIT).any(|ending| name.ends_with(ending)),
        };
        if !ends_well {
            bad.push(format!("{name}, a {}, ends in no unit", family.kind));
        }
        if family.help.is_empty() {
            bad.push(format!("{name} has no help"));
        }
    }
    bad
}

/// Lists metrics of a page that no expression reads.
fn unread(scrape: &Scrape, queries: &[Query]) -> Vec<String> {
    let selectors = queries.iter().flat_map(|query| &query.expression.selectors);
    let read: BTreeSet<_> = selectors.map(|selector| scrape.family_of(&selector.name)).collect();
    let metrics = scrape.families.keys().filter(|name| name.starts_with("mc_"));
    metrics.filter(|name| !read.contains(name.as_str())).cloned().collect()
}

/// Lists what the expressions name and the series do not have.
fn missing(queries: &[Query], live: &[Series]) -> Vec<String> {
    let missing = |query: &Query| {
        let missing = query.expression.missing(live).into_iter();
        missing.map(|what| format!("{}: {what}", query.place)).collect::<Vec<_>>()
    };
    queries.iter().flat_map(missing).collect()
}

#[tokio::test]
async fn boards_and_alerts_read_live_series_and_every_metric_of_masters_and_stores() {
    let (queries, [masters, stores]) = (queries(), jobs());
    let mut cluster = Cluster::builder().stores(2).segment("16mb").start().await;
    let (client, client_page) = client_with_metrics(&cluster).await;

    // Reads, removes, evictions and a failover: the series are to be those of a pool in use.
    for n in 0..48 {
        let key = format!("key-{n}");
        assert_eq!(client.put(&key, &value(&key, 1, MIB)).await.unwrap(), Put::Stored, "put {n}");
    }
    assert!(client.get("key-47").await.unwrap().is_some());
    assert!(!client.exist("key-0").await.unwrap(), "the oldest object was not evicted");
    assert!(client.remove("key-46", true).await.unwrap());
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    let mut tries = 0;
    until("a put is stored after the failover", async || {
        tries += 1;
        matches!(client.put(format!("after the failover {tries}"), b"value").await, Ok(Put::Stored))
    })
    .await;
    cluster.masters[leader].start();
    cluster.ready().await;

    let client_page = client_page();
    for master in 0..3 {
        let master = scrape(&masters, cluster.master_http(master)).await;
        for store in 0..2 {
            let store = scrape(&stores, cluster.store_http(store)).await;
            let live = [&master.series[..], &store.series, &client_page.series].concat();
            assert_eq!(missing(&queries, &live), [""; 0]);
            assert_eq!(badly_described(&store), [""; 0]);
            assert_eq!(unread(&store, &queries), [""; 0], "add panels or alerts for them");
        }
        assert_eq!(badly_described(&master), [""; 0]);
        assert_eq!(unread(&master, &queries), [""; 0], "add panels or alerts for them");
    }
    assert_eq!(unread(&client_page, &queries), [""; 0], "add panels or alerts for them");
}

#[test]
fn a_metric_without_help_unit_or_reader_is_named() {
    let page = "# HELP mc_good_bytes Bytes\n# TYPE mc_good_bytes gauge\nmc_good_bytes 1\n\
                # TYPE mc_bare_seconds histogram\nmc_bare_seconds_count 0\n\
                # HELP mc_calls Calls\n# TYPE mc_calls counter\nmc_calls 1\n\
                # HELP mc_time_ms Time\n# TYPE mc_time_ms gauge\nmc_time_ms 1\n";
    let scrape = Scrape::parse(page, "j", "i");
    assert_eq!(
        badly_described(&scrape),
        [
            "mc_bare_seconds has no help",
            "mc_calls, a counter, ends in no unit",
            "mc_time_ms, a gauge, ends in no unit"
        ]
    );
    let reads = |text| Query { place: "board".to_owned(), expression: Expression::parse(text).unwrap() };
    let queries =
        [reads("mc_good_bytes + rate(mc_bare_seconds_count[1m])"), reads("mc_time_ms{mood=\"good\"}")];
    assert_eq!(unread(&scrape, &queries), ["mc_calls"]);
    assert_eq!(missing(&queries, &scrape.series), ["board: mc_time_ms has no label mood"]);
}
