//! `mcctl get`: reads an object, or parts of it, into a file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use mc_client::{ByteRange, Client, Mode};
use mc_console::{
    Ended, Global, NoLeader, Output, Unavailable, connect, human_bytes, note, printable, write_bytes,
};
use mc_types::ByteSize;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Key of the object
    pub(crate) key: String,
    /// File to write; `-` is standard output
    pub(crate) file: PathBuf,
    /// Part of the object to read, such as 0:4096 or 64kib:1mib; repeat the flag to write several parts, one after the
    /// other [default: the whole object, whose checksum is compared; that of a part can't be]
    #[arg(long = "range", value_name = "OFFSET:LEN", value_parser = byte_range)]
    pub(crate) ranges: Vec<ByteRange>,
}

fn byte_range(text: &str) -> Result<ByteRange, String> {
    let (offset, len) = text.split_once(':').ok_or("write OFFSET:LEN, such as 0:4096 or 64kib:1mib")?;
    let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string());
    Ok(ByteRange { offset: size(offset)?, len: size(len)? })
}

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    found: bool,
    size: Option<usize>,
    file: Option<&'a Path>,
}

pub(crate) async fn get(global: &Global, args: &GetArgs, output: Output) -> Result<Ended> {
    let to_stdout = args.file == Path::new("-");
    if to_stdout && output.is_json() {
        bail!(
            "`get {} -` writes the object to standard output, where the JSON document would go: name a file",
            printable(&args.key)
        );
    }
    let client = connect::client_of(global).await?;
    let Some(value) = read(&client, args).await? else {
        // A get answers with a miss if the object can't be read now, so ask for its presence.
        let presence = client.presence(&args.key).await?;
        if client.mode() == Mode::LocalOnly {
            let why = format!(
                "the leader was lost before it answered, so it is unknown whether {} exists; try again",
                printable(&args.key)
            );
            return Err(NoLeader(why).into());
        }
        if presence.is_there() {
            return Err(Unavailable { key: args.key.clone() }.into());
        }
        let text = format!("{} is not there", printable(&args.key));
        if to_stdout {
            note(&text);
        } else {
            output.result(&Document { key: &args.key, found: false, size: None, file: None }, || text);
        }
        return Ok(Ended::Negative);
    };
    if to_stdout {
        write_bytes(&value);
        return Ok(Ended::Well);
    }
    std::fs::write(&args.file, &value).with_context(|| format!("cannot write {}", args.file.display()))?;
    let document = Document { key: &args.key, found: true, size: Some(value.len()), file: Some(&args.file) };
    output.result(&document, || {
        let size = human_bytes(value.len() as u64);
        format!("got {}: {size} in {}", printable(&args.key), args.file.display())
    });
    Ok(Ended::Well)
}

/// Reads the object, or its ranges one after the other; `None` is a miss.
async fn read(client: &Client, args: &GetArgs) -> Result<Option<Bytes>, mc_client::Error> {
    if args.ranges.is_empty() {
        return client.get(&args.key).await;
    }
    let parts = client.batch_get_ranges(&[(&args.key, args.ranges.clone())]).await;
    let parts = parts.into_iter().next().transpose()?.flatten();
    Ok(parts.map(|parts| parts.concat().into()))
}
