//! `mcctl tenants list|set|rm`: shows tenants, and sets their quotas.

use anyhow::Result;
use mc_client::{Quota, Tenant};
use mc_types::ByteSize;
use serde::Serialize;

use crate::Ended;
use crate::args::{Global, TenantsCommand};
use crate::connect;
use crate::output::{Output, columns, human_bytes};

#[derive(Serialize)]
struct Document {
    tenants: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    /// Whether the quota is its own, rather than the default one.
    registered: bool,
    /// 0: no limit.
    quota_bytes: u64,
    /// 0: no limit.
    quota_objects: u64,
    objects: u64,
    bytes: u64,
    puts_in_flight: u64,
    bytes_in_flight: u64,
    hard_pinned_bytes: u64,
}

#[derive(Serialize)]
struct Changed<'a> {
    tenant: &'a str,
    /// set or removed.
    result: &'static str,
}

pub(crate) async fn tenants(global: &Global, command: &TenantsCommand, output: Output) -> Result<Ended> {
    let admin = connect::client_of(global).await?.admin();
    match command {
        TenantsCommand::List => {
            let tenants = admin.tenants().await?.into_iter().map(listed).collect();
            let document = Document { tenants };
            output.result(&document, || table(&document));
        }
        TenantsCommand::Set { name, bytes, objects } => {
            admin.set_tenant(name, Quota { bytes: *bytes, objects: *objects }).await?;
            let quota = format!("{}, {}", limit(bytes.0, size), limit(*objects, objects_text));
            output.result(&Changed { tenant: name, result: "set" }, || format!("{}: {quota}", shown(name)));
        }
        TenantsCommand::Rm { name } => {
            admin.remove_tenant(name).await?;
            output.result(&Changed { tenant: name, result: "removed" }, || {
                format!("{} has no quota of its own any more", shown(name))
            });
        }
    }
    Ok(Ended::Well)
}

fn listed(tenant: Tenant) -> Listed {
    Listed {
        name: tenant.name,
        registered: tenant.registered,
        quota_bytes: tenant.quota.bytes.0,
        quota_objects: tenant.quota.objects,
        objects: tenant.objects,
        bytes: tenant.bytes.0,
        puts_in_flight: tenant.puts_in_flight,
        bytes_in_flight: tenant.bytes_in_flight.0,
        hard_pinned_bytes: tenant.hard_pinned_bytes.0,
    }
}

/// Returns the name as people read it.
fn shown(name: &str) -> &str {
    if name.is_empty() { "(default)" } else { name }
}

fn limit(limit: u64, text: impl Fn(u64) -> String) -> String {
    if limit == 0 { "no limit".to_owned() } else { text(limit) }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn objects_text(objects: u64) -> String {
    format!("{objects} objects")
}

fn table(document: &Document) -> String {
    if document.tenants.is_empty() {
        return "no tenant has a quota or an object".to_owned();
    }
    let header = ["TENANT", "OBJECTS", "OF", "BYTES", "OF", "IN FLIGHT", "HARD-PINNED", "QUOTA"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for it in &document.tenants {
        rows.push(vec![
            shown(&it.name).to_owned(),
            it.objects.to_string(),
            limit(it.quota_objects, |objects| objects.to_string()),
            human_bytes(it.bytes),
            limit(it.quota_bytes, human_bytes),
            it.puts_in_flight.to_string(),
            human_bytes(it.hard_pinned_bytes),
            if it.registered { "its own" } else { "default" }.to_owned(),
        ]);
    }
    columns(&rows)
}
