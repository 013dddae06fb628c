//! A master's HTTP service: health, metrics, status.

use std::sync::Arc;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use mc_net::Principal;
use mc_process::http::{metrics_page, standard_routes};
use mc_proto::v1;
use mc_types::Role;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::Api;
use crate::metrics::{MasterMetrics, Sample, TenantSample};
use crate::mooncake;

/// Returns the routes `/livez`, `/readyz`, `/metrics`, `/status`, and those of Mooncake. `default` says what `/metrics` has if
/// the request does not.
pub(crate) fn routes(api: Arc<Api>, metrics: Arc<MasterMetrics>, default: MetricNames) -> Router {
    let (ready, scraped, shown) = (api.clone(), api.clone(), api.clone());
    let standard = standard_routes(
        move || readiness(&ready),
        move || {
            let api = shown.clone();
            async move { status_json(&api.status_reply().await) }
        },
    );
    let scrape = move |Query(scrape): Query<Scrape>, Extension(caller): Extension<Principal>| {
        std::future::ready(page(&scraped, &metrics, &scrape, default, &caller))
    };
    standard.route("/metrics", get(scrape)).merge(mooncake::routes(api))
}

/// Whose names metrics have where a request does not say it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricNames {
    Own,
    /// Ours, and Mooncake's after them: no name is both.
    OwnAndMooncake,
}

/// Parameters of a scrape.
#[derive(Debug, Deserialize)]
struct Scrape {
    compat: Option<String>,
}

fn page(
    api: &Api,
    metrics: &MasterMetrics,
    scrape: &Scrape,
    default: MetricNames,
    caller: &Principal,
) -> Response {
    metrics.show(sample(api));
    metrics.show_tls(api.network().tls().map(Arc::as_ref));
    let mut page = metrics.render();
    if !may_know_tenants(caller) {
        page = without_tenants(&page);
    }
    match (scrape.compat.as_deref(), default) {
        (None, MetricNames::Own) => metrics_page(page),
        (None, MetricNames::OwnAndMooncake) => {
            let renamed = mooncake::renamed(&page, api);
            metrics_page(page + &renamed)
        }
        (Some("mooncake"), _) => metrics_page(mooncake::renamed(&page, api)),
        (Some(other), _) => {
            let why = format!("compat={other} is not known: it can be mooncake\n");
            (StatusCode::BAD_REQUEST, why).into_response()
        }
    }
}

/// Whether a caller may know which tenants there are.
fn may_know_tenants(caller: &Principal) -> bool {
    match caller {
        Principal::Open => true,
        Principal::Named { id, .. } => !matches!(id.role(), Role::Store | Role::Tenant { .. }),
        Principal::Stranger(_) => false,
    }
}

/// Leaves out the samples that name a tenant.
fn without_tenants(page: &str) -> String {
    page.split_inclusive('\n').filter(|line| !line.contains("{tenant=\"")).collect()
}

/// Says whether this master is ready, or why it is not.
fn readiness(api: &Api) -> Result<(), String> {
    match api.services() {
        Some(services) => {
            services.coordinator.readiness_input().readiness().map_err(|unready| unready.to_string())
        }
        None => Err(api.own_status().waiting_for),
    }
}

/// Reads the present values of the gauges.
pub(crate) fn sample(api: &Api) -> Sample {
    let status = api.own_status();
    let services = api.services();
    let coordinator = services.as_ref().map(|services| &services.coordinator);
    let raft = services.as_ref().map(|services| &services.raft);
    let of_index = coordinator.map(|coordinator| {
        coordinator.read(|applied| {
            let state = &applied.state;
            let tenants = state.tenants().map(|view| TenantSample::new(&view, state.quota(&view.name)));
            (
                state.usage(&[]),
                state.in_flight_bytes(),
                state.index_bytes(),
                state.groups(),
                tenants.collect(),
            )
        })
    });
    let (usage, in_flight_bytes, index_bytes, groups, tenants) = of_index.unwrap_or_default();
    let in_state = |state: &str| status.stores.iter().filter(|store| store.state == state).count();
    Sample {
        term: status.term,
        leads: status.role == "leader",
        has_leader: status.leader.is_some(),
        can_write: status.role == "leader" && raft.is_some_and(|raft| raft.blocked().is_none()),
        round_trip: raft.and_then(|raft| raft.round_trip()),
        votes_late: raft.is_some_and(|raft| raft.votes_late()),
        committed: status.committed,
        applied: status.applied,
        objects: status.keys,
        puts_in_flight: status.puts_in_flight,
        purged: raft.map_or(0, |raft| raft.view().purged),
        read_leases: coordinator.map_or(0, |coordinator| coordinator.read_leases()),
        stores_alive: in_state("alive"),
        stores_suspect: in_state("suspect"),
        capacity_bytes: total(&status, |store| store.capacity_bytes),
        used_bytes: total(&status, |store| store.used_bytes),
        held_bytes: usage.held,
        in_flight_bytes,
        leased_bytes: coordinator.map_or(0, |coordinator| coordinator.leased_bytes()),
        hard_pinned_bytes: usage.pinned,
        index_bytes,
        groups,
        tenants,
    }
}

fn total(status: &v1::StatusReply, of: impl Fn(&v1::StoreStatus) -> u64) -> u64 {
    status.stores.iter().fold(0, |sum, store| sum.saturating_add(of(store)))
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn status_json(status: &v1::StatusReply) -> Value {
    let leader = status
        .leader
        .as_ref()
        .map(|leader| json!({ "id": hex(&leader.node_id), "addr": leader.address, "term": leader.term }));
    let master = |member: &v1::MemberStatus| {
        json!({
            "id": hex(&member.node_id),
            "addr": member.client_address,
            "raft_addr": member.raft_address,
            "http_addr": member.http_address,
            "voter": member.voter,
        })
    };
    let store = |store: &v1::StoreStatus| {
        json!({
            "id": hex(&store.store_id),
            "name": store.name,
            "state": store.state,
            "capacity_bytes": store.capacity_bytes,
            "used_bytes": store.used_bytes,
            "objects": store.objects,
            "http_addr": store.http_address,
        })
    };
    json!({
        "cluster_id": hex(&status.cluster_id),
        "id": hex(&status.node_id),
        "software": status.software,
        "role": status.role,
        "pid": status.pid,
        "term": status.term,
        "leader": leader,
        "committed": status.committed,
        "applied": status.applied,
        "keys": status.keys,
        "puts_in_flight": status.puts_in_flight,
        "no_puts": status.no_puts,
        "lost_entries": status.lost_entries,
        "cluster_time_ms": status.cluster_time_ms,
        "cluster_version": status.cluster_version,
        "waiting_for": status.waiting_for,
        "masters": status.masters.iter().map(master).collect::<Vec<_>>(),
        "stores": status.stores.iter().map(store).collect::<Vec<_>>(),
    })
}
