//! Calls that take more than one of the client's.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use mc_client::{
    Bytes, Client, Code, Error, GetSession, Presence, Put, PutFromRaw, PutOptions, PutSession, RangeFromRaw,
    RangeIntoRaw, RawBytes, ReadIntoRaw, WriteFromRaw,
};

use super::results::Form;

/// Puts raw memory.
///
/// An engine names groups without knowing their limit, so for Mooncake's callers a put that finds its group full is repeated without one.
pub(super) async fn put(
    client: &Client,
    items: Vec<PutFromRaw>,
    options: &PutOptions,
    form: Form,
    ungrouped: &AtomicU64,
) -> Vec<Result<Put, Error>> {
    let is_grouped = |item: &PutFromRaw| !options.group.is_empty() || !item.group.is_empty();
    let kept = if form == Form::Codes && items.iter().any(is_grouped) { items.clone() } else { Vec::new() };
    let mut results = client.batch_put_from_raw(items, options).await;
    let is_full = |result: &Result<Put, Error>| matches!(result, Err(error) if error.code == Code::GroupFull);
    let (full, again): (Vec<usize>, Vec<PutFromRaw>) = kept
        .into_iter()
        .enumerate()
        .filter(|(at, _)| is_full(&results[*at]))
        .map(|(at, item)| (at, item.with_group(Bytes::new())))
        .unzip();
    if !again.is_empty() {
        tracing::debug!(puts = again.len(), "groups are full: the objects are put without one");
        ungrouped.fetch_add(again.len() as u64, Ordering::Relaxed);
        let mut options = options.clone();
        options.group.clear();
        for (at, result) in full.into_iter().zip(client.batch_put_from_raw(again, &options).await) {
            results[at] = result;
        }
    }
    results
}

/// Puts copies of raw memory, which the local cache keeps. For Mooncake's callers, puts of a group may be repeated, and are not cached.
pub(super) async fn put_through_cache(
    client: &Client,
    items: Vec<PutFromRaw>,
    options: &PutOptions,
    form: Form,
    ungrouped: &AtomicU64,
) -> Vec<Result<Put, Error>> {
    if form == Form::Codes && !options.group.is_empty() {
        return put(client, items, options, form, ungrouped).await;
    }
    let copied = |item: PutFromRaw| (item.key, Bytes::from(copied(&item.slices)));
    let items: Vec<(Bytes, Bytes)> = items.into_iter().map(copied).collect();
    client.batch_put_bytes(&items, options).await
}

fn copied(parts: &[RawBytes]) -> Vec<u8> {
    let mut copy: Vec<u8> = Vec::with_capacity(parts.iter().map(RawBytes::len).sum());
    for part in parts {
        // SAFETY: the caller's part is readable, as its `RawBytes` says, and the copy has room for it at its end. Bytes that change meanwhile
        // are copied as a mixture.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), copy.as_mut_ptr().add(copy.len()), part.len());
            copy.set_len(copy.len() + part.len());
        }
    }
    copy
}

/// Reads ranges in sessions.
pub(super) async fn read(
    client: &Client,
    items: &[(Arc<GetSession>, Vec<RangeIntoRaw>)],
) -> Vec<Result<usize, Error>> {
    client
        .batch_read_into_raw(
            items.iter().map(|(session, ranges)| ReadIntoRaw::new(session, ranges.clone())).collect(),
        )
        .await
}

/// Writes ranges in sessions.
pub(super) async fn write(
    client: &Client,
    items: &[(Arc<PutSession>, Vec<RangeFromRaw>)],
) -> Vec<Result<usize, Error>> {
    client
        .batch_write_from_raw(
            items.iter().map(|(session, ranges)| WriteFromRaw::new(session, ranges.clone())).collect(),
        )
        .await
}

/// Says whether objects exist, without a read lease.
pub(super) async fn peek(client: &Client, keys: &[Bytes]) -> Vec<Result<bool, Error>> {
    let found = client.batch_peek(keys).await;
    found.into_iter().map(|found| found.map(|presence| matches!(presence, Presence::Present(_)))).collect()
}

/// Opens put sessions, each in its group: one call for each group.
pub(super) async fn open_puts(
    client: &Client,
    items: &[(Bytes, u64)],
    groups: &[Bytes],
    options: &PutOptions,
) -> Vec<Result<Option<PutSession>, Error>> {
    let mut names: Vec<&Bytes> = groups.iter().collect();
    names.sort_unstable();
    names.dedup();
    let open = names.iter().map(|name| {
        let members: Vec<_> = items
            .iter()
            .zip(groups)
            .filter(|(_, group)| group == name)
            .map(|(item, _)| item.clone())
            .collect();
        let mut options = options.clone();
        if !name.is_empty() {
            options.group = name.to_vec();
        }
        async move { client.batch_put_session(&members, &options).await.into_iter() }
    });
    let mut opened = join_all(open).await;
    // The sessions of a group come in the order of their items, and `names` contains every group.
    groups.iter().filter_map(|group| opened[names.binary_search(&group).ok()?].next()).collect()
}
