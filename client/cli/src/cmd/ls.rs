//! `mcctl ls`: lists the keys of objects.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use mc_client::{Client, Code, Description, Error, ListedKey};
use mc_console::{Ended, Global, Output, columns, connect, human_bytes, or_dash, printable};
use serde::Serialize;

use super::stat::pin_name;

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// First bytes of the keys to list [default: all keys]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Show the data type, pin, group and stores of each object, too
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Most keys to list; the exit code is 0 even if there are more
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
}

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
    /// Only with --long.
    #[serde(flatten)]
    details: Option<Details>,
}

#[derive(Default, Serialize)]
struct Details {
    data_type: u8,
    /// soft or hard; absent if the object is not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pin: Option<&'static str>,
    /// Whether the object is in a group.
    group: bool,
    replicas: Vec<Replica>,
    /// Whether the listed object is gone and another one of this key is being written.
    being_written: bool,
}

#[derive(Serialize)]
struct Replica {
    /// Name of the store.
    name: String,
    /// Whether the store is silent, so that readers are not sent to it.
    suspect: bool,
}

pub(crate) async fn ls(global: &Global, args: &LsArgs, output: Output) -> Result<Ended> {
    let client = connect::client_of(global).await?;
    let mut document = Document { keys: Vec::new(), more: false };
    let mut from = None;
    loop {
        let left = args.limit.saturating_sub(document.keys.len() as u64);
        // One more than is shown tells whether there are more.
        let page = client.list_keys(&args.prefix, from, u32::try_from(left + 1).unwrap_or(u32::MAX)).await?;
        document.keys.extend(match args.long {
            false => page.keys.iter().map(|key| listed(key, None)).collect(),
            true => described(&client, &page.keys).await?,
        });
        from = page.next;
        if from.is_none() || document.keys.len() as u64 > args.limit {
            break;
        }
    }
    let shown = usize::try_from(args.limit).unwrap_or(usize::MAX);
    document.more = document.keys.len() > shown;
    document.keys.truncate(shown);
    document.keys.sort_by(|a, b| a.key.cmp(&b.key));
    output.result(&document, || text(&document, args.long));
    Ok(Ended::Well)
}

fn listed(key: &ListedKey, details: Option<Details>) -> Listed {
    Listed { key: String::from_utf8_lossy(&key.key).into_owned(), size: key.size.0, details }
}

/// Describes the keys of a page with one call, and leaves out those that are gone since they were listed.
async fn described(client: &Client, page: &[ListedKey]) -> Result<Vec<Listed>, Error> {
    let keys: Vec<_> = page.iter().map(|listed| &listed.key).collect();
    let mut described = Vec::with_capacity(page.len());
    for (key, found) in page.iter().zip(client.batch_describe(&keys).await) {
        let details = match found {
            Ok(None) => continue,
            Ok(Some(found)) => details(found),
            Err(error) if error.code == Code::ReplicaIsNotReady => {
                Details { being_written: true, ..Details::default() }
            }
            Err(error) => return Err(error),
        };
        described.push(listed(key, Some(details)));
    }
    Ok(described)
}

fn details(found: Description) -> Details {
    let replicas = found.replicas.into_iter();
    Details {
        data_type: found.data_type,
        pin: found.pin.map(pin_name),
        group: found.group.is_some(),
        replicas: replicas
            .map(|replica| Replica { name: replica.store_name, suspect: replica.suspect })
            .collect(),
        being_written: false,
    }
}

fn text(document: &Document, long: bool) -> String {
    let mut text = match (document.keys.is_empty(), long) {
        (true, _) => "no keys\n".to_owned(),
        (false, true) => table(&document.keys),
        (false, false) => document.keys.iter().fold(String::new(), |mut text, listed| {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{:>12}  {}", human_bytes(listed.size), printable(&listed.key));
            text
        }),
    };
    if document.more {
        text += "and more: raise --limit, or give a longer prefix\n";
    }
    text
}

fn table(keys: &[Listed]) -> String {
    let row = |Listed { key, size, details }: &Listed| {
        let details = details.as_ref()?;
        let store = |replica: &Replica| match replica.suspect {
            true => format!("{} (suspect)", printable(&replica.name)),
            false => printable(&replica.name).into_owned(),
        };
        Some([
            human_bytes(*size),
            details.data_type.to_string(),
            or_dash(details.pin),
            or_dash(details.group.then_some("yes")),
            match details.being_written {
                true => "being written".to_owned(),
                false => details.replicas.iter().map(store).collect::<Vec<_>>().join(", "),
            },
            printable(key).into_owned(),
        ])
    };
    columns(["SIZE", "TYPE", "PIN", "GROUP", "STORES", "KEY"], keys.iter().filter_map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_forges_no_row_of_a_listing() {
        let listed = |details| Listed { key: "a\n9 B  \x1b[2Jb".to_owned(), size: 1, details };
        for (long, details) in [(false, None), (true, Some(Details::default()))] {
            let said = text(&Document { keys: vec![listed(details)], more: false }, long);
            assert!(said.ends_with("a\\n9 B  \\u{1b}[2Jb\n") && !said.contains('\x1b'), "{said}");
            assert_eq!(said.lines().count(), 1 + usize::from(long), "{said}");
        }
    }

    #[test]
    fn a_long_listing_has_a_row_for_each_object() {
        let replica = |name: &str, suspect| Replica { name: name.to_owned(), suspect };
        let object = Details {
            data_type: 7,
            pin: Some("hard"),
            group: true,
            replicas: vec![replica("a:50060", false), replica("b:50060", true)],
            being_written: false,
        };
        let listed =
            |key: &str, details| Listed { key: key.to_owned(), size: 131_072, details: Some(details) };
        let written = Details { being_written: true, ..Details::default() };
        let keys = vec![listed("page/1", object), listed("page/2", written)];
        assert_eq!(
            text(&Document { keys, more: false }, true),
            "SIZE       TYPE  PIN   GROUP  STORES                      KEY\n\
             128.0 KiB  7     hard  yes    a:50060, b:50060 (suspect)  page/1\n\
             128.0 KiB  0     -     -      being written               page/2\n"
        );
    }
}
