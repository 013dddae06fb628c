//! Objects that this process holds itself to answer gets without a leader.

mod cache;
mod embedded;
mod unpublished;

pub(crate) use cache::LocalCache;
pub(crate) use embedded::{Embedded, EmbeddedPlace};
pub(crate) use unpublished::{LocalPut, Unpublished};

use crate::config::Config;
use crate::metrics::Counters;

/// The local cache, the memory of this process's own store, and the local puts that are to be published.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) cache: LocalCache,
    /// The memory of this process's own store, if it runs one.
    pub(crate) embedded: Option<Embedded>,
    /// The local puts that are to be published, if [`publish_local`](crate::Builder::publish_local) is on.
    pub(crate) unpublished: Option<Unpublished>,
}

impl Local {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            cache: LocalCache::new(config.local_cache),
            embedded: config.embedded.clone().map(|(store, memory)| Embedded::new(store, memory)),
            unpublished: config.publish_local.then(Unpublished::default),
        }
    }

    /// Drops a key's object from the local cache, and its recorded place in the embedded store.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.cache.remove(key);
        if let Some(embedded) = &self.embedded {
            embedded.forget(key);
        }
    }

    /// Drops everything, because it belongs to a cluster that the client has left.
    pub(crate) fn clear(&self, counters: &Counters) {
        self.cache.clear();
        self.embedded.iter().for_each(Embedded::clear);
        if let Some(unpublished) = &self.unpublished {
            unpublished.forget(counters);
        }
    }
}
