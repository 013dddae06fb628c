//! Listing of keys, page by page and as a stream.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use mc_proto::v1::ListKeysRequest;
use mc_types::ByteSize;
use tokio::time::Instant;

use crate::call::Repeat;
use crate::core::Core;
use crate::{Client, Error};

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

pub(crate) async fn list_keys(
    core: &Core,
    prefix: Bytes,
    from: Option<ListPosition>,
    limit: u32,
) -> Result<KeyPage, Error> {
    let from = from.map_or(0, |from| from.0);
    let request = ListKeysRequest { caller: None, tenant: core.tenant.clone(), prefix, from, limit };
    let deadline = Instant::now() + core.call_timeout;
    let answer = core.leader.call(&request, deadline, Repeat::Freely).await;
    let reply = answer.map_err(|error| error.into_error("list keys"))?.reply;
    let keys = reply.keys.into_iter().map(|it| ListedKey { key: it.key, size: ByteSize(it.size) });
    Ok(KeyPage { keys: keys.collect(), next: (reply.next > 0).then_some(ListPosition(reply.next)) })
}

impl Client {
    /// Lists objects of this client's tenant whose keys begin with `prefix`, at most `limit` of them (0: 1,000; at most
    /// 4,096). Pass the page's `next` to get the next one.
    ///
    /// An object that exists from the first page to the last is listed exactly once. A page costs the masters time for
    /// what it visits, not for what it returns: a prefix with few keys among many objects has many empty pages.
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time.
    pub async fn list_keys(
        &self,
        prefix: impl AsRef<[u8]>,
        from: Option<ListPosition>,
        limit: u32,
    ) -> Result<KeyPage, Error> {
        let prefix = Bytes::copy_from_slice(prefix.as_ref());
        self.run("list keys", 1, list_keys(self.core(), prefix, from, limit)).await
    }

    /// Lists all objects of this client's tenant whose keys begin with `prefix`, in no particular order.
    ///
    /// The stream asks the leader for a [page](Self::list_keys) of 1,000 keys once the one before is used up. Each page has the deadline of
    /// [`Builder::call_timeout`](crate::Builder::call_timeout) to itself, so a long listing takes as long as it takes. The first error
    /// ends the stream; to go on after one, list by pages.
    ///
    /// ```no_run
    /// use futures::TryStreamExt;
    ///
    /// # async fn example(client: &mc_client::Client) -> Result<(), mc_client::Error> {
    /// let mut objects = client.list("prompt/");
    /// while let Some(object) = objects.try_next().await? {
    ///     println!("{}: {}", object.key.escape_ascii(), object.size);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> BoxStream<'static, Result<ListedKey, Error>> {
        let (client, prefix) = (self.clone(), Bytes::copy_from_slice(prefix.as_ref()));
        let page = move |from: Option<Option<ListPosition>>| {
            let (client, prefix) = (client.clone(), prefix.clone());
            async move {
                let Some(from) = from else { return Ok(None) };
                let page = client.list_keys(prefix, from, 0).await?;
                let keys = stream::iter(page.keys.into_iter().map(Ok));
                Ok(Some((keys, page.next.map(Some))))
            }
        };
        // It begins with the first page, which has no position.
        stream::try_unfold(Some(None), page).try_flatten().boxed()
    }
}
