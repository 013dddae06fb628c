//! Reads into memory that is handed over.

use bytes::Bytes;
use mc_transfer::{LentMemory, RegisteredMemory};

use super::{Destination, Get, Got};
use crate::{Client, Code, Error};

/// One object to read into memory that is handed over.
#[derive(Debug)]
#[non_exhaustive]
pub struct GetIntoOwned {
    /// Its key.
    pub key: Bytes,
    /// Memory that receives its bytes, one part after the other; in sum it may be longer than the object.
    pub into: Vec<RegisteredMemory>,
}

impl GetIntoOwned {
    /// The object of this key, to be read into this memory.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, into: Vec<RegisteredMemory>) -> Self {
        Self { key: key.into(), into }
    }
}

/// Result of a [`GetIntoOwned`].
#[derive(Debug)]
#[non_exhaustive]
pub struct GotOwned {
    /// Number of bytes, or `None` for a miss.
    pub read: Result<Option<usize>, Error>,
    /// The memory. If no bytes were read, its content is unspecified, and parts are missing that an RDMA device did not
    /// release (`TRANSFER_FAIL`, which no device is known to cause).
    pub into: Vec<RegisteredMemory>,
}

impl Client {
    /// Reads objects like [`batch_get_into`](Self::batch_get_into), into memory that comes back with the results.
    ///
    /// If it is memory of [`allocate`](Self::allocate), the devices of stores write the bytes straight into it where these go by
    /// RDMA, without a copy. Borrowed memory can't be used that way: a device might still write there when the future that borrows
    /// it is gone. Take parts of a large allocation with [`RegisteredMemory::split_off`], as the first use of each allocation
    /// registers all of it, which takes a second for some GiB.
    ///
    /// If the future is dropped, so is the memory.
    pub async fn batch_get_into_owned(&self, items: Vec<GetIntoOwned>) -> Vec<GotOwned> {
        let count = items.len();
        let (keys, memory): (Vec<_>, Vec<_>) = items.into_iter().map(|item| (item.key, item.into)).unzip();
        let get = async {
            let mut lent = lend(memory).await;
            let into = |parts| Destination::whole_into(<[_]>::iter_mut(parts).map(LentMemory::buffer));
            let items = keys.into_iter().zip(&mut lent).map(|(key, parts)| (key, into(parts)));
            let results = Get::new(self.core()).all(items.collect()).await;
            (results, lent)
        };
        let (results, lent) = self.run("get", count, get).await;
        let back = |(read, parts): (Result<Option<Got>, Error>, Vec<LentMemory>)| {
            let (mut read, mut into) =
                (read.map(|got| got.map(|got| got.len())), Vec::with_capacity(parts.len()));
            for part in parts {
                match part.take_back() {
                    Ok(memory) => into.push(memory),
                    Err(lost) => {
                        read =
                            Err(Error::definite("get", Code::TransferFail, "this client", lost.to_string()));
                    }
                }
            }
            GotOwned { read, into }
        };
        results.into_iter().zip(lent).map(back).collect()
    }
}

async fn lend(memory: Vec<Vec<RegisteredMemory>>) -> Vec<Vec<LentMemory>> {
    let lend = |memory: Vec<Vec<RegisteredMemory>>| {
        let each = |parts: Vec<RegisteredMemory>| parts.into_iter().map(RegisteredMemory::lend).collect();
        memory.into_iter().map(each).collect()
    };
    if memory.iter().flatten().all(RegisteredMemory::is_lent_at_once) {
        return lend(memory);
    }
    // It registers memory, which takes a while.
    match tokio::task::spawn_blocking(move || lend(memory)).await {
        Ok(lent) => lent,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}
