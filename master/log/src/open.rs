use std::fmt;
use std::path::Path;

use futures::future::BoxFuture;

use super::{LogOptions, LogStore, OpenError, Recovered, SledOptions};

/// Opens the log of a master. Handed in, so that a simulation puts it on a disk that loses what was not synced.
pub trait OpenLog: fmt::Debug + Send + Sync {
    /// Opens the log that lies in `dir`, or makes it.
    ///
    /// # Errors
    /// [`OpenError`] for what is found there.
    fn open(
        &self,
        dir: &Path,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<(LogStore, Recovered), OpenError>>;
}

/// On sled.
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
