use std::fmt;
use std::path::Path;

use futures::future::BoxFuture;

use super::LogStore;
use crate::disk::sled::SledOptions;
use crate::error::OpenError;
use crate::recover::Recovered;
use crate::write::options::LogOptions;

/// Opens the log of a master. A simulation opens it on a disk that loses writes which were not synced.
pub trait OpenLog: fmt::Debug + Send + Sync {
    /// Opens the log in `dir`, or creates it.
    fn open(
        &self,
        dir: &Path,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<(LogStore, Recovered), OpenError>>;
}

/// Opens logs on sled.
#[derive(Clone, Debug, Default)]
pub struct OnSled(pub SledOptions);

impl OpenLog for OnSled {
    fn open(
        &self,
        dir: &Path,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<(LogStore, Recovered), OpenError>> {
        Box::pin(LogStore::open_sled(dir.to_path_buf(), self.0.clone(), options))
    }
}
