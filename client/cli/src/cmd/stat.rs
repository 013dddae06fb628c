//! `mcctl stat`: shows the size, checksum, pin, group and stores of an object.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use mc_client::{DescribedReplica, Pin};
use mc_console::{Ended, Global, Output, Unavailable, connect, human_bytes, printable};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Key of the object, 1 to 4,096 bytes
    pub(crate) key: String,
}

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    found: bool,
    #[serde(flatten)]
    object: Option<Object>,
}

#[derive(Serialize)]
struct Object {
    version: String,
    size: u64,
    /// CRC-64/NVME of the bytes, in hexadecimal.
    checksum: String,
    /// soft or hard; absent if the object is not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pin: Option<&'static str>,
    /// Milliseconds until a soft pin ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pin_left_ms: Option<u64>,
    data_type: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<Group>,
    replicas: Vec<Replica>,
}

#[derive(Serialize)]
struct Group {
    /// Hash of the tenant and the group's name, in hexadecimal.
    id: String,
    members: u32,
    /// Members that were lost with their stores.
    lost: u32,
    /// Puts in flight that will join.
    joining: u32,
}

#[derive(Serialize)]
struct Replica {
    store: String,
    name: String,
    addr: String,
    segment: u64,
    offset: u64,
    /// Whether the store is silent, so that readers are not sent to it.
    suspect: bool,
}

pub(crate) async fn stat(global: &Global, args: &StatArgs, output: Output) -> Result<Ended> {
    let client = connect::client_of(global).await?;
    let found = client.describe(&args.key).await?;
    if found.as_ref().is_some_and(|found| found.replicas.iter().all(|replica| replica.suspect)) {
        return Err(Unavailable { key: args.key.clone() }.into());
    }
    let replica = |replica: DescribedReplica| Replica {
        store: replica.store.to_string(),
        name: replica.store_name,
        addr: replica.address,
        segment: replica.segment.into(),
        offset: replica.offset,
        suspect: replica.suspect,
    };
    let object = found.map(|found| {
        let left = match found.pin {
            Some(Pin::Soft { left }) => Some(left),
            _ => None,
        };
        Object {
            version: found.version.to_string(),
            size: found.size.0,
            checksum: format!("{:016x}", found.checksum),
            pin: found.pin.map(pin_name),
            pin_left_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            data_type: found.data_type,
            group: found.group.map(|group| Group {
                id: format!("{:032x}", group.id),
                members: group.members,
                lost: group.lost,
                joining: group.joining,
            }),
            replicas: found.replicas.into_iter().map(replica).collect(),
        }
    });
    let ended = if object.is_some() { Ended::Well } else { Ended::Negative };
    let document = Document { key: &args.key, found: object.is_some(), object };
    output.result(&document, || text(&document));
    Ok(ended)
}

/// Returns the word for a pin in tables and documents.
pub(super) fn pin_name(pin: Pin) -> &'static str {
    match pin {
        Pin::Soft { .. } => "soft",
        Pin::Hard => "hard",
        _ => "other",
    }
}

fn text(document: &Document<'_>) -> String {
    let key = printable(document.key);
    let Some(object) = &document.object else { return format!("{key} is not there") };
    let mut text = format!(
        "{key}\n  size      {} ({} bytes)\n  checksum  {}\n  version   {}\n",
        human_bytes(object.size),
        object.size,
        object.checksum,
        object.version
    );
    // Writing to a string can't fail.
    let _ = match (object.pin, object.pin_left_ms) {
        (None, _) => Ok(()),
        (Some(pin), None) => writeln!(text, "  pin       {pin}"),
        (Some(pin), Some(left)) => writeln!(text, "  pin       {pin}, for {} s more", left.div_ceil(1000)),
    };
    if object.data_type > 0 {
        let _ = writeln!(text, "  data type {}", object.data_type);
    }
    if let Some(Group { id, members, lost, joining }) = &object.group {
        let incomplete = if *lost > 0 { format!(", incomplete: {lost} lost") } else { String::new() };
        let joining = if *joining > 0 { format!(", {joining} being written") } else { String::new() };
        let _ = writeln!(text, "  group     {id}: {members} members{incomplete}{joining}");
    }
    for replica in &object.replicas {
        let suspect = if replica.suspect { ", suspect" } else { "" };
        let _ = writeln!(
            text,
            "  replica   store {} ({}), segment {}, offset {}{suspect}",
            printable(&replica.addr),
            replica.store,
            replica.segment,
            replica.offset
        );
    }
    text
}
