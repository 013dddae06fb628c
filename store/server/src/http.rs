//! HTTP routes of the store: health, metrics, status, segments and the list of masters.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use mc_process::http::{metrics_page, standard_routes};
use mc_store::{MasterList, Segments, StoreReport, StoreStatus, TransportReport};
use serde_json::json;

use crate::metrics::StoreMetrics;

pub(crate) fn routes(
    store: StoreStatus,
    segments: Segments,
    masters: MasterList,
    metrics: Arc<StoreMetrics>,
) -> Router {
    let (ready, shown) = (store.clone(), store.clone());
    let standard =
        standard_routes(move || ready.ready(), move || std::future::ready(self::status(&store.report())));
    let scrape = move || std::future::ready(metrics_page(metrics.render(&shown.report())));
    let standard = standard.route("/metrics", get(scrape));
    standard.merge(crate::segments::routes(segments)).merge(crate::masters::routes(masters))
}

fn transport(report: &TransportReport) -> serde_json::Value {
    json!({
        "name": report.name,
        "offered": report.offered,
        "how": report.how,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
    })
}

fn status(report: &StoreReport) -> serde_json::Value {
    json!({
        "id": report.id.to_string(),
        "name": report.name,
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "ready": report.ready.is_ok(),
        "why_not_ready": report.ready.as_ref().err(),
        "capacity_bytes": report.capacity.0,
        "allocated_bytes": report.allocated.0,
        "cluster": report.cluster.map(|id| id.to_string()),
        "epoch": report.epoch.map(|epoch| epoch.to_string()),
        "masters": report.masters,
        "leader": report.leader,
        "term": report.term,
        "heartbeat_age_ms": report.heartbeat_age.map(|age| age.as_millis()),
        "mounts": report.mounts,
        "key_changes": report.key_changes,
        "dead_epochs": report.dead_epochs,
        "bytes_read": report.totals.bytes_read,
        "bytes_written": report.totals.bytes_written,
        "shut_out": report.shut_out,
        "transports": report.transports.iter().map(transport).collect::<Vec<_>>(),
    })
}
