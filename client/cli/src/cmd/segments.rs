//! `mcctl segments`: lists the segments of the mounted stores.

use anyhow::Result;
use mc_client::{SegmentStatus, StoreStatus};
use mc_console::{Ended, Global, Output, address, columns, connect, human_bytes, printable, state_name};
use serde::Serialize;

#[derive(Serialize)]
struct Document<'a> {
    segments: Vec<Segment<'a>>,
}

#[derive(Serialize)]
struct Segment<'a> {
    /// Name of the store.
    store: &'a str,
    addr: &'a str,
    /// Number of the segment within the store, as `mcctl stat` shows it.
    segment: u32,
    /// State of the store: alive, suspect, or unknown, because only a leader can tell.
    state: &'static str,
    size_bytes: u64,
    used_bytes: u64,
    /// Number of replicas in the segment.
    objects: u64,
}

pub(crate) async fn segments(global: &Global, output: Output) -> Result<Ended> {
    let status = connect::client_of(global).await?.admin().status().await;
    let document = Document { segments: status.stores().iter().flat_map(of_store).collect() };
    output.result(&document, || table(&document));
    Ok(Ended::Well)
}

fn of_store(store: &StoreStatus) -> impl Iterator<Item = Segment<'_>> {
    let segment = |status: &SegmentStatus| Segment {
        store: &store.name,
        addr: address(store),
        segment: status.number,
        state: state_name(store.state),
        size_bytes: status.capacity.0,
        used_bytes: status.used.0,
        objects: status.objects,
    };
    store.segments.iter().map(segment)
}

fn table(document: &Document<'_>) -> String {
    if document.segments.is_empty() {
        return "no store is mounted".to_owned();
    }
    let heading = ["STORE", "ADDRESS", "SEGMENT", "STATE", "SIZE", "USED", "FULL", "OBJECTS"];
    let rows = document.segments.iter().map(|segment| {
        let full = 100.0 * segment.used_bytes as f64 / segment.size_bytes.max(1) as f64;
        [
            printable(segment.store).into_owned(),
            printable(segment.addr).into_owned(),
            segment.segment.to_string(),
            segment.state.to_owned(),
            human_bytes(segment.size_bytes),
            human_bytes(segment.used_bytes),
            format!("{full:.0} %"),
            segment.objects.to_string(),
        ]
    });
    columns(heading, rows)
}
