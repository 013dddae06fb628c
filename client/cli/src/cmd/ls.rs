//! `mcctl ls`: lists the keys of objects.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::Ended;
use crate::args::{Global, LsArgs};
use crate::connect;
use crate::output::{Output, human_bytes};

#[derive(Serialize)]
struct Document {
    keys: Vec<Listed>,
    /// Whether there are more keys than were asked for.
    more: bool,
}

#[derive(Serialize)]
struct Listed {
    /// The key as text; bytes that are no UTF-8 are replaced.
    key: String,
    size: u64,
}

pub(crate) async fn ls(global: &Global, args: &LsArgs, output: Output) -> Result<Ended> {
    let client = connect::client_of(global).await?;
    let mut document = Document { keys: Vec::new(), more: false };
    let mut from = None;
    loop {
        let left = args.limit.saturating_sub(document.keys.len() as u64);
        // One more than is shown tells whether there are more.
        let page = client.list_keys(&args.prefix, from, u32::try_from(left + 1).unwrap_or(u32::MAX)).await?;
        for listed in page.keys {
            let key = String::from_utf8_lossy(&listed.key).into_owned();
            document.keys.push(Listed { key, size: listed.size.0 });
        }
        from = page.next;
        if from.is_none() || document.keys.len() as u64 > args.limit {
            break;
        }
    }
    let shown = usize::try_from(args.limit).unwrap_or(usize::MAX);
    document.more = document.keys.len() > shown;
    document.keys.truncate(shown);
    document.keys.sort_by(|a, b| a.key.cmp(&b.key));
    output.result(&document, || text(&document));
    Ok(Ended::Well)
}

fn text(document: &Document) -> String {
    let mut text = String::new();
    for Listed { key, size } in &document.keys {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{:>12}  {key}", human_bytes(*size));
    }
    text += match (document.keys.len(), document.more) {
        (0, _) => "no keys\n",
        (_, true) => "and more: raise --limit, or give a longer prefix\n",
        _ => "",
    };
    text
}
