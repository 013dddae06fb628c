//! Removal of all objects, by pattern, and of single replicas.

use bytes::Bytes;
use mc_proto::v1::{BatchDropReplicasRequest, RemoveAllRequest};
use mc_types::Code;
use tokio::time::Instant;

use crate::Error;
use crate::call::Repeat;
use crate::core::{Core, item_error, nonsense};

/// Result of a removal of many objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Number of objects that were removed.
    pub objects: u64,
    /// Number of objects that would have been, but are being read.
    pub leased: u64,
}

impl Core {
    /// Removes the objects whose keys match; all, if the pattern is empty.
    pub(crate) async fn remove_matching(&self, pattern: &str, force: bool) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        let mut from = 0;
        loop {
            let request = RemoveAllRequest {
                caller: None,
                tenant: self.tenant.clone(),
                pattern: pattern.to_owned(),
                force,
                from,
            };
            let deadline = Instant::now() + self.call_timeout;
            let answer = self.masters.call(&request, deadline, Repeat::IfUnsent).await;
            self.forget_removed(pattern);
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

    /// Drops what this process holds itself of objects that are removed, whatever the outcome. Local puts that wait to be
    /// published keep their values if a pattern decides: it is not known here which of them match.
    fn forget_removed(&self, pattern: &str) {
        if pattern.is_empty() || self.local.unpublished.is_none() {
            self.local.clear(&self.counters);
        }
    }

    pub(crate) async fn drop_replicas(&self, keys: Vec<Bytes>, store_name: &str) -> Vec<Result<bool, Error>> {
        let deadline = Instant::now() + self.call_timeout;
        self.by_chunks("drop replicas", keys, |keys| self.drop_these(keys, store_name.to_owned(), deadline))
            .await
    }

    async fn drop_these(
        &self,
        keys: Vec<Bytes>,
        store_name: String,
        deadline: Instant,
    ) -> Vec<Result<bool, Error>> {
        let request =
            BatchDropReplicasRequest { caller: None, tenant: self.tenant.clone(), store_name, keys };
        let reply = match self.masters.call(&request, deadline, Repeat::IfUnsent).await {
            Ok(answer) => answer.reply,
            Err(error) => {
                request.keys.iter().for_each(|key| self.local.forget(key));
                return vec![Err(error.into_error("drop replicas")); request.keys.len()];
            }
        };
        if reply.results.len() != request.keys.len() {
            return vec![Err(nonsense("drop replicas").unknown()); request.keys.len()];
        }
        request.keys.iter().for_each(|key| self.local.forget(key));
        let dropped = reply.results.iter().map(|result| match Code::try_from(result.code) {
            Ok(Code::Ok) => Ok(true),
            Ok(Code::ObjectNotFound) => Ok(false),
            _ => Err(item_error("drop replicas", result.code)),
        });
        dropped.collect()
    }
}
