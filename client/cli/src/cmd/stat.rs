//! `mcctl stat`: shows the size, checksum and stores of an object.

use std::fmt::Write as _;

use anyhow::Result;
use mc_client::Presence;
use serde::Serialize;

use crate::Ended;
use crate::args::{Global, KeyArgs};
use crate::connect;
use crate::failure::Unavailable;
use crate::output::{Output, human_bytes};

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
    replicas: Vec<Replica>,
}

#[derive(Serialize)]
struct Replica {
    store: String,
    addr: Option<String>,
    segment: u64,
    offset: u64,
}

pub(crate) async fn stat(global: &Global, args: &KeyArgs, output: Output) -> Result<Ended> {
    let client = connect::client_with_leader(&global.masters(), global.timeout.0).await?;
    let found = client.admin().lookup(&args.key).await?;
    if found.is_none() && client.presence(&args.key).await? == Presence::Unavailable {
        return Err(Unavailable { key: args.key.clone() }.into());
    }
    let object = found.map(|lookup| Object {
        version: lookup.version.to_string(),
        size: lookup.size.0,
        checksum: format!("{:016x}", lookup.checksum),
        replicas: lookup
            .replicas
            .iter()
            .map(|replica| Replica {
                store: replica.store.to_string(),
                addr: replica.endpoints.first().map(|endpoint| endpoint.address.clone()),
                segment: replica.segment.into(),
                offset: replica.offset,
            })
            .collect(),
    });
    let ended = if object.is_some() { Ended::Well } else { Ended::Negative };
    let document = Document { key: &args.key, found: object.is_some(), object };
    output.result(&document, || text(&document));
    Ok(ended)
}

fn text(document: &Document<'_>) -> String {
    let Some(object) = &document.object else { return format!("{} is not there", document.key) };
    let mut text = format!(
        "{}\n  size      {} ({} bytes)\n  checksum  {}\n  version   {}\n",
        document.key,
        human_bytes(object.size),
        object.size,
        object.checksum,
        object.version
    );
    for replica in &object.replicas {
        let addr = replica.addr.as_deref().unwrap_or("?");
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "  replica   store {addr} ({}), segment {}, offset {}",
            replica.store, replica.segment, replica.offset
        );
    }
    text
}
