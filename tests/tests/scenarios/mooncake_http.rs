//! The HTTP paths of Mooncake's master, in its formats.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use mc_net::TcpNetwork;
use mc_process::http::exchange;
use mc_tests::{Cluster, http_get, until};
use serde_json::{Value, json};
use tokio::time::Instant;

/// GETs `path`: the status, the type, the position of the next page, and the text.
async fn get(address: &str, path: &str) -> (u16, String, Option<String>, String) {
    let request = tonic::codegen::http::Request::get(path).body(Bytes::new()).unwrap();
    let connect_by = Instant::now() + Duration::from_secs(10);
    let answer = exchange(&TcpNetwork, address, connect_by, 64 << 20, request).await.unwrap();
    let header = |name| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
    let text = String::from_utf8(answer.body().to_vec()).unwrap();
    (answer.status().as_u16(), header("content-type").unwrap_or_default(), header("mc-next"), text)
}

async fn json_at(address: &str, path: &str) -> (u16, Value) {
    let (status, kind, _, text) = get(address, path).await;
    assert!(kind.starts_with("application/json"), "{path}: {kind} {text}");
    (status, serde_json::from_str(&text).unwrap())
}

async fn lines_at(address: &str, path: &str) -> BTreeSet<String> {
    let (status, kind, next, text) = get(address, path).await;
    assert_eq!((status, next), (200, None), "{path}: {text}");
    assert_eq!(kind, "text/plain; version=0.0.4", "{path}");
    let lines: BTreeSet<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), text.lines().count(), "a line is there twice: {text}");
    lines
}

#[tokio::test]
async fn every_master_answers_about_the_pool_also_after_its_leader() {
    let mut cluster = Cluster::builder().masters(3).stores(2).start().await;
    let client = cluster.client().await;
    let keys: BTreeSet<_> = (0..25).map(|n| format!("key-{n}")).collect();
    for key in &keys {
        client.put(key, b"value").await.unwrap();
    }
    let leader = cluster.leader().await;
    let (_, status) = json_at(cluster.master_http(leader), "/status").await;
    let names = status["stores"].as_array().unwrap().iter().map(|store| store["name"].as_str().unwrap());
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    assert_eq!(names.len(), 2);

    for master in 0..3 {
        let http = cluster.master_http(master);
        assert_eq!(lines_at(http, "/get_all_segments").await, names);
        assert_eq!(lines_at(http, "/get_all_keys").await, keys);
        let (_, details) = json_at(http, "/get_segments_detail").await;
        assert_eq!(details["total_segments"], 2);
        for segment in details["segments"].as_array().unwrap() {
            assert!(names.contains(segment["segment_name"].as_str().unwrap()), "{segment}");
            assert_eq!(segment["size_human"], "0.25 GiB", "{segment}");
            assert_eq!(segment["size_bytes"], 256 << 20, "{segment}");
            assert_eq!(
                (&segment["status"], &segment["protocol"]),
                (&json!("OK"), &json!("tcp")),
                "{segment}"
            );
        }
        let (status, found) = json_at(http, "/query_key?key=key-7").await;
        assert_eq!((status, &found["success"]), (200, &json!(true)));
        let replica = &found["data"][0];
        assert_eq!((&replica["size_"], &replica["protocol_"]), (&json!(5), &json!("tcp")), "{found}");
        assert!(names.contains(replica["transport_endpoint_"].as_str().unwrap()), "{found}");
        let (status, found) = json_at(http, "/batch_query_keys?keys=key-7,nothing").await;
        let nothing = json!({
            "ok": false, "error": "OBJECT_NOT_FOUND", "values": null, "disk_values": null,
            "local_disk_values": null, "nof_values": null,
        });
        assert_eq!((status, &found["data"]["nothing"]), (200, &nothing));
        assert_eq!(found["data"]["key-7"]["values"][0], *replica);
    }

    cluster.masters[leader].kill9();
    for master in (0..3).filter(|master| *master != leader) {
        // Each request looks for the next leader itself; one that meets the dead leader's term to its end is repeated.
        until("a master that lives answers", async || {
            get(cluster.master_http(master), "/get_all_keys").await.0 == 200
        })
        .await;
        assert_eq!(lines_at(cluster.master_http(master), "/get_all_keys").await, keys);
    }
}

#[tokio::test]
async fn pages_list_every_key_once() {
    let cluster = Cluster::builder().masters(1).start().await;
    let client = cluster.client().await;
    let keys: BTreeSet<_> = (0..40).map(|n| format!("key-{n}")).collect();
    for key in &keys {
        client.put(key, b"value").await.unwrap();
    }
    let (mut seen, mut pages, mut from) = (Vec::new(), 0, "0".to_owned());
    loop {
        let path = format!("/get_all_keys?limit=10&from={from}");
        let (status, _, next, text) = get(cluster.master_http(0), &path).await;
        assert_eq!(status, 200, "{text}");
        (pages, seen) = (pages + 1, [seen, text.lines().map(str::to_owned).collect()].concat());
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((seen.len(), pages >= 4), (keys.len(), true), "{pages} pages");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), keys);
}

#[tokio::test]
async fn each_master_tells_its_own_state() {
    let cluster = Cluster::builder().masters(3).stores(1).start().await;
    let leader = cluster.leader().await;
    let address = cluster.status(leader).await.unwrap().leader.unwrap().address;
    for master in 0..3 {
        let http = cluster.master_http(master);
        let (role, state) = if master == leader { ("leader", "serving") } else { ("standby", "standby") };
        until("the master has caught up", async || get(http, "/ha_status").await.3 == state).await;
        assert_eq!(get(http, "/role").await.3, role);
        let (status, health) = json_at(http, "/health").await;
        let term = health["view_version"].as_u64().unwrap();
        let expected = json!({
            "status": "ok", "role": role, "ha_state": state, "service_ready": master == leader,
            "leader_address": address, "view_version": term,
        });
        assert_eq!((status, health), (200, expected));
        let (_, known) = json_at(http, "/leader").await;
        assert_eq!(known, json!({ "present": true, "leader_address": address, "view_version": term }));
        let (status, kind, _, summary) = get(http, "/metrics/summary").await;
        assert_eq!((status, &*kind), (200, "text/plain; version=0.0.4"));
        let ready = master == leader;
        let begins = format!(
            "role={role}, state={state}, service_ready={ready}, master={{Mem Storage: 0 B / 256.00 MB (0.0%)"
        );
        assert!(summary.starts_with(&begins), "{summary}");
    }
}

#[tokio::test]
async fn metrics_have_mooncakes_names_where_they_are_asked_for() {
    let cluster = Cluster::builder().masters(1).start().await;
    let client = cluster.client().await;
    client.put("a", b"value").await.unwrap();
    client.get("a").await.unwrap();
    let http = cluster.master_http(0);
    let (status, kind, _, page) = get(http, "/metrics?compat=mooncake").await;
    assert_eq!((status, &*kind), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let name = json_at(http, "/status").await.1["stores"][0]["name"].as_str().unwrap().to_owned();
    for line in [
        "master_total_capacity_bytes 268435456",
        "master_key_count 1",
        "master_active_clients 1",
        "valid_get_nums_ 1",
        "# TYPE master_allocated_bytes gauge",
        "# TYPE master_evicted_key_count counter",
        &format!("segment_total_capacity_bytes{{segment=\"{name}\"}} 268435456"),
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("mc_"), "{page}");
    let (status, _, _, why) = get(http, "/metrics?compat=other").await;
    assert_eq!((status, &*why), (400, "compat=other is not known: it can be mooncake\n"));
}

#[tokio::test]
async fn bad_requests_have_mooncakes_status_and_a_reason() {
    let cluster = Cluster::builder().masters(1).stores(0).start().await;
    let http = cluster.master_http(0);
    assert_eq!(
        get(http, "/get_all_segments").await,
        (200, "text/plain; version=0.0.4".into(), None, String::new())
    );
    let too_many = format!("/batch_query_keys?keys={}", vec!["k"; 4_097].join(","));
    for (path, status, why) in [
        ("/query_key?key=nothing", 404, "\"error_code\":-704,\"error_message\":\"OBJECT_NOT_FOUND\""),
        ("/query_key", 404, "no key is given"),
        ("/query_key?key=", 404, "no key is given"),
        ("/batch_query_keys", 400, "No keys provided"),
        ("/batch_query_keys?keys=", 400, "No keys provided"),
        (&too_many, 400, "4097 keys: a request can have 4096"),
        ("/get_all_keys?limit=0", 400, "limit=0 is out of bounds"),
        ("/get_all_keys?limit=10001", 400, "limit=10001 is out of bounds"),
        ("/get_all_keys?limit=-1", 400, "invalid digit"),
        ("/get_all_keys?from=x", 400, "invalid digit"),
    ] {
        let (code, _, _, text) = get(http, path).await;
        assert_eq!(code, status, "{path}: {text}");
        assert!(text.contains("\"success\":false") && text.contains(why), "{path}: {text}");
    }
    let (code, _) = mc_process::http::request("PUT", http, "/get_all_keys").await.unwrap();
    assert_eq!(code, 405);
}

#[tokio::test]
async fn a_master_without_a_leader_says_so() {
    let mut cluster = Cluster::builder().masters(3).stores(0).start().await;
    for master in [1, 2] {
        cluster.masters[master].kill9();
    }
    let http = cluster.master_http(0);
    until("no leader is known", async || {
        http_get(http, "/leader").await.is_ok_and(|(_, text)| text.contains("\"present\":false"))
    })
    .await;
    for path in [
        "/get_all_segments",
        "/get_all_keys",
        "/query_key?key=a",
        "/batch_query_keys?keys=a",
        "/get_segments_detail",
    ] {
        let (status, answer) = json_at(http, path).await;
        assert_eq!((status, &answer["error_code"]), (503, &json!(-1011)), "{path}");
        assert!(answer["error_message"].as_str().unwrap().contains("no leader is known"), "{path}: {answer}");
    }
    let (_, health) = json_at(http, "/health").await;
    assert_eq!((&health["status"], &health["service_ready"]), (&json!("ok"), &json!(false)));
}
