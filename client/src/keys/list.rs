//! Listing of keys.

use bytes::Bytes;
use mc_proto::v1::ListKeysRequest;
use mc_types::ByteSize;
use tokio::time::Instant;

use crate::Error;
use crate::call::Repeat;
use crate::core::Core;

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPage {
    /// Keys and sizes of objects, in no particular order. There may be none although more pages follow.
    pub keys: Vec<ListedKey>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<ListPosition>,
}

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedKey {
    /// Its key.
    pub key: Bytes,
    /// Its size.
    pub size: ByteSize,
}

/// Position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPosition(u64);

impl Core {
    pub(crate) async fn list_keys(
        &self,
        prefix: Bytes,
        from: Option<ListPosition>,
        limit: u32,
    ) -> Result<KeyPage, Error> {
        let from = from.map_or(0, |from| from.0);
        let request = ListKeysRequest { caller: None, tenant: self.tenant.clone(), prefix, from, limit };
        let deadline = Instant::now() + self.call_timeout;
        let answer = self.masters.call(&request, deadline, Repeat::Freely).await;
        let reply = answer.map_err(|error| error.into_error("list keys"))?.reply;
        let keys = reply.keys.into_iter().map(|it| ListedKey { key: it.key, size: ByteSize(it.size) });
        Ok(KeyPage { keys: keys.collect(), next: (reply.next > 0).then_some(ListPosition(reply.next)) })
    }
}
