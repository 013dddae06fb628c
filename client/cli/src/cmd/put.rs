//! `mcctl put`: stores a file as one object.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use mc_client::{Code, Near, PinAction, Put, PutMode, PutOptions, Replication};
use mc_console::{Ended, Global, NoLeader, Output, connect, human_bytes, note, printable};
use mc_types::Span;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Key of the object, 1 to 4,096 bytes
    pub(crate) key: String,
    /// File to put; `-` is standard input
    pub(crate) file: PathBuf,
    /// Replace an existing object; without this flag the old object stays and the exit code is 1
    #[arg(long)]
    pub(crate) replace: bool,
    /// Number of copies, each on another store
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replicas: u32,
    /// Refuse the put rather than store fewer copies than --replicas
    #[arg(long)]
    pub(crate) all_replicas: bool,
    /// Store to prefer, given by its address as `status` shows it, or by its name; can be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) prefer: Vec<String>,
    /// Prefer the stores of this host
    #[arg(long)]
    pub(crate) local: bool,
    /// Group that the object joins: its members are evicted together
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) group: String,
    /// Tag of the object, 0 to 255, which the pool keeps and does not interpret
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) data_type: u8,
    /// Protection of the object from eviction
    #[arg(long, value_enum, default_value_t = PinKind::Preserve, value_name = "PIN")]
    pub(crate) pin: PinKind,
    /// Duration of a soft pin, at most 24 hours
    #[arg(long, default_value = "30m", value_name = "DURATION")]
    pub(crate) pin_for: Span,
}

/// Pin that a put asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PinKind {
    /// Keep the pin of the object that is replaced, if any
    Preserve,
    /// No pin
    Off,
    /// For the time in --pin-for, evict the object only when no object without a pin can be evicted
    Soft,
    /// Never evict the object; the setting hard-pin-limit bounds the bytes of such objects
    Hard,
}

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    /// stored, exists, or refused.
    result: &'static str,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Name of the pool's code, if the pool refused the put.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
}

pub(crate) async fn put(global: &Global, args: &PutArgs, output: Output) -> Result<Ended> {
    let value = read(&args.file)?;
    if value.is_empty() {
        bail!("{} is empty: an object has at least one byte", args.file.display());
    }
    let client = connect::client_of(global).await?;
    let pin = match args.pin {
        PinKind::Preserve => PinAction::Preserve,
        PinKind::Off => PinAction::Disable,
        PinKind::Soft => PinAction::Soft(args.pin_for.0),
        PinKind::Hard => PinAction::Hard,
    };
    let options = PutOptions::default()
        .with_mode(if args.replace { PutMode::Upsert } else { PutMode::IfAbsent })
        .with_replicas(args.replicas)
        .with_pin(pin)
        .with_replication(if args.all_replicas { Replication::Strict } else { Replication::BestEffort })
        .with_preferred_names(&args.prefer)
        .with_near(if args.local { Near::Client } else { Near::Any })
        .with_group(args.group.as_bytes())
        .with_data_type(args.data_type);
    let key = printable(&args.key);
    let mut document =
        Document { key: &args.key, result: "stored", size: value.len(), error: None, code: None };
    let (text, ended) = match client.put_with(&args.key, &value, &options).await {
        Ok(Put::Stored) => (format!("stored {key}: {}", human_bytes(value.len() as u64)), Ended::Well),
        Ok(Put::AlreadyExists) => {
            document.result = "exists";
            (
                format!("{key} is there already and stays as it is (--replace puts a new value)"),
                Ended::Negative,
            )
        }
        Ok(Put::LocalOnly) => {
            let why = "the leader was lost before the put was acknowledged: nothing is stored";
            return Err(NoLeader(why.to_owned()).into());
        }
        Err(error) if refused(error.code) => {
            note(&format!("error: {error}"));
            document.result = "refused";
            document.error = Some(error.to_string());
            document.code = Some(error.code.name());
            (format!("refused {key}"), Ended::Negative)
        }
        Err(error) => return Err(error.into()),
    };
    output.result(&document, || text);
    Ok(ended)
}

/// Returns whether the code means that the pool refused the put, rather than that it failed.
fn refused(code: Code) -> bool {
    matches!(
        code,
        Code::NoAvailableHandle
            | Code::ObjectTooLarge
            | Code::InvalidKey
            | Code::InvalidParams
            | Code::TenantQuotaExceeded
            | Code::TenantNotRegistered
            | Code::GroupFull
    )
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut value = Vec::new();
        std::io::stdin().lock().read_to_end(&mut value).context("cannot read standard input")?;
        return Ok(value);
    }
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
