//! Removal of all objects, by pattern, and of single replicas.

use bytes::Bytes;
use mc_proto::v1::{BatchDropReplicasRequest, BatchRemoveRequest, RemoveAllRequest, RemoveItem};
use mc_types::Code;
use tokio::time::Instant;

use crate::call::Repeat;
use crate::core::{Core, copied, item_error, nonsense};
use crate::{Client, Error};

/// Result of a removal of many objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Number of objects that were removed.
    pub objects: u64,
    /// Number of objects that would have been, but are being read.
    pub leased: u64,
}

/// Removes each object; the result is `false` where there was none.
pub(crate) async fn removals(core: &Core, keys: Vec<Bytes>, force: bool) -> Vec<Result<bool, Error>> {
    let deadline = Instant::now() + core.call_timeout;
    core.by_chunks("remove", keys, |keys| remove_these(core, keys, force, deadline)).await
}

async fn remove_these(
    core: &Core,
    keys: Vec<Bytes>,
    force: bool,
    deadline: Instant,
) -> Vec<Result<bool, Error>> {
    let mut bar = core.local.unpublished.as_ref().map(|queue| queue.bar(keys.clone(), &core.local.cache));
    if let Some(bar) = &mut bar {
        if let Err(error) = bar.quiet(deadline).await {
            return vec![Err(error); keys.len()];
        }
        bar.sent();
    }
    let items: Vec<RemoveItem> =
        keys.into_iter().map(|key| RemoveItem { key, version: Bytes::new() }).collect();
    let request = BatchRemoveRequest { caller: None, tenant: core.tenant.clone(), items, force };
    let answer = match core.leader.call(&request, deadline, Repeat::IfUnsent).await {
        Ok(answer) => answer,
        Err(error) => {
            let error = error.into_error("remove");
            if error.is_unknown() {
                request.items.iter().for_each(|item| core.local.forget(&item.key));
            } else if let Some(bar) = &mut bar {
                (0..request.items.len()).for_each(|at| bar.failed(at));
            }
            return vec![Err(error); request.items.len()];
        }
    };
    if answer.reply.results.len() != request.items.len() {
        return vec![Err(nonsense("remove").unknown()); request.items.len()];
    }
    let results = request.items.iter().zip(&answer.reply.results).enumerate().map(|(at, (item, result))| {
        let removed = match Code::try_from(result.code) {
            Ok(Code::Ok) => Ok(true),
            Ok(Code::ObjectNotFound) => Ok(false),
            _ => Err(item_error("remove", result.code)),
        };
        if removed.is_ok() {
            core.local.forget(&item.key);
        } else if let Some(bar) = &mut bar {
            bar.failed(at);
        }
        removed
    });
    results.collect()
}

/// Removes the objects whose keys match; all, if the pattern is empty.
pub(crate) async fn remove_matching(core: &Core, pattern: &str, force: bool) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    let mut from = 0;
    loop {
        let request = RemoveAllRequest {
            caller: None,
            tenant: core.tenant.clone(),
            pattern: pattern.to_owned(),
            force,
            from,
        };
        let deadline = Instant::now() + core.call_timeout;
        let answer = core.leader.call(&request, deadline, Repeat::IfUnsent).await;
        forget_removed(core, pattern);
        let reply = answer
            .map_err(|error| {
                let what = if pattern.is_empty() { "remove all" } else { "remove by regex" };
                let error = Error { what, ..error.into_error(what) };
                if removed.objects > 0 { error.unknown() } else { error }
            })?
            .reply;
        removed.objects += reply.removed;
        removed.leased += reply.leased;
        from = reply.next;
        if from == 0 {
            return Ok(removed);
        }
    }
}

/// Drops what this process holds itcore of objects that are removed, whatever the outcome. Local puts that wait to be
/// published keep their values if a pattern decides: it is not known here which of them match.
fn forget_removed(core: &Core, pattern: &str) {
    if pattern.is_empty() || core.local.unpublished.is_none() {
        core.local.clear(&core.counters);
    }
}

pub(crate) async fn drop_replicas(
    core: &Core,
    keys: Vec<Bytes>,
    store_name: &str,
) -> Vec<Result<bool, Error>> {
    let deadline = Instant::now() + core.call_timeout;
    core.by_chunks("drop replicas", keys, |keys| drop_these(core, keys, store_name.to_owned(), deadline))
        .await
}

async fn drop_these(
    core: &Core,
    keys: Vec<Bytes>,
    store_name: String,
    deadline: Instant,
) -> Vec<Result<bool, Error>> {
    let request = BatchDropReplicasRequest { caller: None, tenant: core.tenant.clone(), store_name, keys };
    let reply = match core.leader.call(&request, deadline, Repeat::IfUnsent).await {
        Ok(answer) => answer.reply,
        Err(error) => {
            request.keys.iter().for_each(|key| core.local.forget(key));
            return vec![Err(error.into_error("drop replicas")); request.keys.len()];
        }
    };
    if reply.results.len() != request.keys.len() {
        return vec![Err(nonsense("drop replicas").unknown()); request.keys.len()];
    }
    request.keys.iter().for_each(|key| core.local.forget(key));
    let dropped = reply.results.iter().map(|result| match Code::try_from(result.code) {
        Ok(Code::Ok) => Ok(true),
        Ok(Code::ObjectNotFound) => Ok(false),
        _ => Err(item_error("drop replicas", result.code)),
    });
    dropped.collect()
}

impl Client {
    /// Removes an object; returns `false` when there was none.
    ///
    /// With `force` it also removes an object that is being read. The client does not repeat a remove that may have
    /// been applied: the repetition could remove an object that another client has put since.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn remove(&self, key: impl AsRef<[u8]>, force: bool) -> Result<bool, Error> {
        let mut results = self.batch_remove(&[key.as_ref()], force).await;
        results.pop().unwrap_or_else(|| Err(nonsense("remove")))
    }

    /// [`remove`](Self::remove) for many keys; one result each, in order.
    pub async fn batch_remove<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        force: bool,
    ) -> Vec<Result<bool, Error>> {
        self.run("remove", keys.len(), removals(self.core(), copied(keys), force)).await
    }

    /// Removes all objects of this client's tenant, pinned ones included; with `force`, leased ones, too.
    ///
    /// With `force`, all objects that exist at one moment are removed at once. Otherwise they are removed bit by bit, and
    /// objects that are put meanwhile may be removed or not.
    ///
    /// # Errors
    /// [`Error`]; what was removed before a failure stays removed.
    pub async fn remove_all(&self, force: bool) -> Result<Removed, Error> {
        self.run("remove all", 1, remove_matching(self.core(), "", force)).await
    }

    /// Removes the objects of this client's tenant whose keys match a regular expression, which is not anchored; with
    /// `force`, leased ones, too. Pinned ones are removed as well.
    ///
    /// Keys are matched as bytes, in the syntax of the crate `regex`. Objects that are put meanwhile may be removed or
    /// not.
    ///
    /// # Errors
    /// [`Error`], with `INVALID_PARAMS` for a pattern that can't be used; what was removed before a failure stays
    /// removed.
    pub async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<Removed, Error> {
        if pattern.is_empty() {
            let why = "an empty pattern matches every key: call remove_all for that";
            return Err(Error::definite("remove by regex", Code::InvalidParams, "this client", why));
        }
        self.run("remove by regex", 1, remove_matching(self.core(), pattern, force)).await
    }

    /// Drops the replicas of objects on the store of that name or host:port; `false` where there was none. An object without another
    /// replica is removed.
    ///
    /// # Errors
    /// Each item its [`Error`]: `OBJECT_HAS_LEASE` while the object is being read, `INVALID_PARAMS` for an unknown store.
    pub async fn batch_drop_replicas<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        store_name: &str,
    ) -> Vec<Result<bool, Error>> {
        self.run("drop replicas", keys.len(), drop_replicas(self.core(), copied(keys), store_name)).await
    }
}
