//! HTTP paths of the processes.

use super::markdown::{code, table};

const INTRODUCTION: &str = "\
## HTTP paths of a master

All are answered at `--http-listen`, with GET unless the table says more. \"The leader\" means that any master may be asked: one
that does not lead asks the leader, looks for the next one for up to 2.5 s, and answers 503 if there is none. Paths from `/metadata` on
have the formats of Mooncake's master. `/get_all_keys`, `/query_key` and `/batch_query_keys` know the objects of the default tenant
only; counts and sizes at the other paths are those of all tenants.";

/// Path, who answers, and with what.
const PATHS: [(&str, &str, &str); 23] = [
    ("/livez", "this master", "200 as long as the process answers"),
    ("/readyz", "this master", "200 when it can do its part, else 503 with the reason"),
    ("/status", "this master", "State of the master, members and stores as JSON"),
    (
        "/metrics",
        "this master",
        "Metrics in Prometheus's format; with `?compat=mooncake` [under Mooncake's names](#metrics-of-mc-master-under-mooncakes-names), with \
         `--mooncake-metrics` under both",
    ),
    (
        "/metadata?key=KEY",
        "the leader",
        "GET, PUT, DELETE of an entry of a small replicated table. 400 without a key, 404 for an absent entry. A key with `rpc_meta` \
         in it is an engine's address: putting another value answers 400 until it is deleted. Also at `--metadata-listen`",
    ),
    (
        "/get_all_segments",
        "the leader",
        "Names of the stores whose segments can be read, one a line for each segment",
    ),
    (
        "/get_segments_detail",
        "the leader",
        "The segments as JSON; `SUSPECT` is the status of one whose store is silent",
    ),
    (
        "/query_segment?segment=NAME",
        "the leader",
        "Used and lent bytes of the stores with this name, in three lines; 500 if there is none",
    ),
    (
        "/get_all_keys",
        "the leader",
        "Keys, one a line, in no order: up to 10,000 of them, or `limit=N`. If there are more, the header `mc-next` is the `from` of \
         the next page",
    ),
    (
        "/query_key?key=KEY",
        "the leader",
        "Replicas of an object as JSON; 404 if there is none. Takes no lease",
    ),
    (
        "/batch_query_keys?keys=A,B",
        "the leader",
        "The same of up to 4,096 keys; 400 without any. A key with a comma can be asked for with `/query_key` only",
    ),
    ("/health", "this master", "200 as long as the process answers, with role, state and leader as JSON"),
    ("/role", "this master", "`leader` or `standby`"),
    (
        "/ha_status",
        "this master",
        "`starting`, `standby`, `candidate`, `catching_up`, `leader_warmup` or `serving`",
    ),
    ("/leader", "this master", "Address of the leader, and its term as `view_version`, as JSON"),
    ("/metrics/summary", "this master", "State, memory, keys and stores in one line"),
    ("/kv_events/status", "this master", "JSON that says that no events are published"),
    (
        "/api/v1/segments/status?segment=NAME",
        "the leader",
        "Status of a segment as JSON: `OK`, or `SUSPECT` with the number 0; 404 if there is none, 400 without a name",
    ),
    (
        "/api/v1/tenant_quotas?tenant_id=TENANT",
        "the leader",
        "GET, PUT with `{\"requested_quota_bytes\": N}`, DELETE of a tenant's quota in bytes, as `mcctl tenants` sets it; GET without a \
         tenant lists 4,096. 0 bytes are no limit. 404 for an unknown tenant, 409 for one that is to go and has objects",
    ),
    (
        "/api/v1/remove_all?tenant_id=TENANT",
        "the leader",
        "POST: removes the objects of a tenant, or of all tenants without one. Leased objects stay, unless there is `force=true`. 503 \
         with the number removed if it takes more than a second: ask again",
    ),
    (
        "/api/v1/drain_jobs",
        "this master",
        "POST: 409, because the objects of a store leave the pool with it; 400 for a body that is no request",
    ),
    ("/api/v1/drain_jobs/query?job_id=ID", "this master", "404, or 400 without the id of a job"),
    ("/api/v1/drain_jobs/cancel?job_id=ID", "this master", "POST: 404, or 400 without the id of a job"),
];

/// Returns the section on HTTP paths.
pub(super) fn section() -> String {
    let rows = PATHS.iter().map(|(path, who, what)| [code(path), (*who).to_owned(), (*what).to_owned()]);
    format!("{INTRODUCTION}\n\n{}", table(["Path", "Answered by", "Answer"], rows))
}
