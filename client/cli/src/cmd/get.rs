//! `mcctl get`: reads an object, or parts of it, into a file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use mc_client::{Client, Mode};
use mc_console::{
    Ended, Global, NoLeader, Output, Unavailable, connect, human_bytes, note, printable, write_bytes,
};
use serde::Serialize;

use crate::args::GetArgs;

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
