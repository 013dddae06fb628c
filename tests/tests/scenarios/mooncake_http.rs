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

/// Sends a request with a body. Returns the status and the text.
async fn send(address: &str, method: &str, path: &str, body: &'static str) -> (u16, String) {
    let request = tonic::codegen::http::Request::builder().method(method).uri(path);
    let request = request.body(Bytes::from_static(body.as_bytes())).unwrap();
    let connect_by = Instant::now() + Duration::from_secs(10);
    let answer = exchange(&TcpNetwork, address, connect_by, 1 << 20, request).await.unwrap();
    (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap())
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
    let long_tenant = format!("/api/v1/tenant_quotas?tenant_id={}", "x".repeat(300));
    let no_job = "/api/v1/drain_jobs/query?job_id=01234567-89ab-cdef-0123-456789abcdef".to_owned();
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
    for (method, path, body, status, why) in [
        ("GET", "/query_segment?segment=x", "", 500, "Failed to query segment: there is no segment \"x\""),
        ("GET", "/query_segment", "", 500, "Failed to query segment"),
        ("GET", "/api/v1/segments/status", "", 400, "Missing segment query parameter"),
        ("GET", "/api/v1/segments/status?segment=x", "", 404, "\"error_code\":-101"),
        ("GET", "/api/v1/tenant_quotas?tenant_id=x", "", 404, "\"error_code\":-704"),
        ("PUT", "/api/v1/tenant_quotas", "{}", 400, "Missing or invalid tenant_id"),
        ("DELETE", "/api/v1/tenant_quotas", "", 400, "Missing or invalid tenant_id"),
        ("DELETE", "/api/v1/tenant_quotas?tenant_id=x", "", 404, "\"error_code\":-704"),
        ("PUT", "/api/v1/tenant_quotas?tenant_id=x", "{", 400, "Invalid JSON body"),
        (
            "PUT",
            "/api/v1/tenant_quotas?tenant_id=x",
            "{\"requested_quota_bytes\":-1}",
            400,
            "Invalid JSON body",
        ),
        (
            "PUT",
            "/api/v1/tenant_quotas?tenant_id=x",
            "{\"requested_quota_bytes\":0}",
            400,
            "must be in [1, 2^63 - 1]",
        ),
        ("PUT", &long_tenant, "{\"requested_quota_bytes\":1}", 400, "Invalid tenant_id"),
        ("POST", "/api/v1/drain_jobs", "", 400, "Invalid JSON body"),
        ("POST", "/api/v1/drain_jobs", "{\"segments\":[]}", 400, "segments is empty"),
        ("POST", "/api/v1/drain_jobs", "{\"segments\":[\"a\"]}", 409, "this pool has no drain jobs"),
        ("GET", "/api/v1/drain_jobs/query?job_id=7", "", 400, "Missing or invalid job_id"),
        ("GET", &no_job, "", 404, "\"error_code\":-1402"),
        ("POST", "/api/v1/drain_jobs/cancel", "", 400, "Missing or invalid job_id"),
        ("PUT", "/get_all_keys", "", 405, ""),
        ("GET", "/api/v1/remove_all", "", 405, ""),
        ("POST", "/api/v1/tenant_quotas", "", 405, ""),
    ] {
        let (code, text) = send(http, method, path, body).await;
        assert_eq!(code, status, "{method} {path}: {text}");
        assert!(text.contains(why), "{method} {path}: {text}");
    }
}

#[tokio::test]
async fn segments_quotas_and_removals_are_administered_through_any_master() {
    let cluster = Cluster::builder().masters(3).stores(1).start().await;
    let client = cluster.client().await;
    for key in ["a", "b", "c"] {
        client.put(key, &[7; 5_000]).await.unwrap();
    }
    let leader = cluster.leader().await;
    let http = cluster.master_http((leader + 1) % 3);
    let (_, status) = json_at(http, "/status").await;
    let name = status["stores"][0]["name"].as_str().unwrap();

    let (status, _, _, usage) = get(http, &format!("/query_segment?segment={name}")).await;
    let (first, rest) = usage.split_once('\n').unwrap();
    assert_eq!((status, first), (200, name));
    let used = rest.strip_prefix("Used(bytes): ").and_then(|rest| rest.split_once('\n')).unwrap();
    assert!(used.0.parse::<u64>().unwrap() >= 15_000, "{usage}");
    assert_eq!(used.1, "Capacity(bytes) : 268435456\n");
    let (_, found) = json_at(http, &format!("/api/v1/segments/status?segment={name}")).await;
    let expected = json!({
        "success": true, "segment": name, "status": 1, "status_name": "OK", "error_code": 0, "error_message": "",
    });
    assert_eq!(found, expected);
    let (_, events) = json_at(http, "/kv_events/status").await;
    assert_eq!(events["enabled"], json!(false));

    // Quotas, also of the default tenant, which has this name here.
    let quota = |of: &str| format!("/api/v1/tenant_quotas?tenant_id={of}");
    for tenant in ["team", "default"] {
        let (status, text) = send(http, "PUT", &quota(tenant), "{\"requested_quota_bytes\":1048576}").await;
        let set: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &set["data"]["requested_quota_bytes"]), (200, &json!(1 << 20)), "{text}");
        assert_eq!(json_at(http, &quota(tenant)).await.1, set);
    }
    let (_, all) = json_at(http, "/api/v1/tenant_quotas").await;
    let of_default = &all["data"][0];
    assert_eq!((&of_default["tenant_id"], all["data"].as_array().unwrap().len()), (&json!("default"), 2));
    assert!(of_default["charged_bytes"].as_u64().unwrap() >= 15_000, "{all}");
    assert_eq!(send(http, "DELETE", &quota("default"), "").await.0, 409, "it has objects");
    assert_eq!(send(http, "DELETE", &quota("team"), "").await.0, 200);
    assert_eq!(send(http, "DELETE", &quota("team"), "").await.0, 404);

    // A leased object stays unless the removal is forced.
    client.get("a").await.unwrap();
    let removed = |count: u64| (200, format!("{{\"success\":true,\"removed_count\":{count}}}"));
    assert_eq!(send(http, "POST", "/api/v1/remove_all?tenant_id=other", "").await, removed(0));
    assert_eq!(send(http, "POST", "/api/v1/remove_all", "").await, removed(2));
    assert_eq!(send(http, "POST", "/api/v1/remove_all?tenant_id=default&force=true", "").await, removed(1));
    assert_eq!(lines_at(http, "/get_all_keys").await, BTreeSet::new());
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
