//! `mcctl audit`: who changed the cluster, and who was refused.

use anyhow::Result;
use clap::Args;
use mc_client::{AuditKind, AuditLog, AuditRecord};
use mc_console::certificates::rfc3339;
use mc_console::{Ended, Global, Output, columns, connect, note, or_dash, printable};
use mc_types::DEFAULT_TENANT;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Show callers that were refused, instead of changes
    #[arg(long)]
    refusals: bool,
    /// Number of records to show, the newest last; at most 1000 of each master
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

#[derive(Serialize)]
struct Document {
    records: Vec<Shown>,
    /// Masters whose log is missing here.
    missing: Vec<Missing>,
}

#[derive(Serialize)]
struct Shown {
    at: String,
    /// Log index of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    /// Address of a master that has the record.
    master: String,
    who: Option<String>,
    from: Option<String>,
    call: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    subject: String,
    result: String,
    /// Objects that were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    /// Equal refusals within a second.
    times: u64,
}

#[derive(Serialize)]
struct Missing {
    master: String,
    why: String,
}

pub(crate) async fn audit(global: &Global, args: &AuditArgs, output: Output) -> Result<Ended> {
    let admin = connect::admin(&global.masters()).await?;
    let kind = if args.refusals { AuditKind::Refusals } else { AuditKind::Changes };
    let document = document(admin.audit(kind, args.limit as usize).await?);
    for Missing { master, why } in &document.missing {
        note(&format!("the log of {master} is missing: {}", printable(why)));
    }
    output.result(&document, || table(&document, kind));
    Ok(Ended::Well)
}

fn document(log: AuditLog) -> Document {
    let missing = log.missing.into_iter().map(|(master, error)| Missing { master, why: error.to_string() });
    Document { records: log.records.into_iter().map(shown).collect(), missing: missing.collect() }
}

fn shown(record: AuditRecord) -> Shown {
    let named = |tenant: String| if tenant.is_empty() { DEFAULT_TENANT.to_owned() } else { tenant };
    Shown {
        at: rfc3339(record.at),
        index: record.index,
        master: record.master,
        who: record.who,
        from: record.from,
        call: record.call,
        tenant: record.tenant.map(named),
        subject: record.subject,
        result: record.result,
        objects: record.objects,
        times: record.times,
    }
}

fn table(document: &Document, kind: AuditKind) -> String {
    if document.records.is_empty() {
        return "no records".to_owned();
    }
    let shown = |text: &Option<String>| or_dash(text.as_deref().map(printable));
    let call = |it: &Shown| or_dash(Some(printable(&it.call)).filter(|call| !call.is_empty()));
    match kind {
        AuditKind::Changes => {
            let row = |it: &Shown| {
                let objects = it.objects.map_or_else(String::new, |objects| format!(", {objects} objects"));
                [
                    it.at.clone(),
                    shown(&it.who),
                    shown(&it.from),
                    call(it),
                    shown(&it.tenant),
                    format!("{}{objects}", it.result),
                    printable(&it.subject).into_owned(),
                ]
            };
            let heading = ["TIME", "WHO", "FROM", "CALL", "TENANT", "RESULT", "SUBJECT"];
            columns(heading, document.records.iter().map(row))
        }
        AuditKind::Refusals => {
            let row = |it: &Shown| {
                [
                    it.at.clone(),
                    it.master.clone(),
                    shown(&it.who),
                    shown(&it.from),
                    call(it),
                    it.times.to_string(),
                    printable(&it.subject).into_owned(),
                ]
            };
            let heading = ["TIME", "MASTER", "WHO", "FROM", "CALL", "TIMES", "WHY"];
            columns(heading, document.records.iter().map(row))
        }
    }
}
