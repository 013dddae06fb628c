use std::fmt;
use std::io;
use std::path::Path;

/// Tells how much room a disk has. It is injected, so that a test can fill one.
pub trait FreeSpace: fmt::Debug + Send + Sync {
    /// Returns the bytes that this process may still write to the file system of `dir`. May block.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// The free space that the operating system reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl FreeSpace for FileSystem {
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
