//! Files and directories that survive a crash, and the threads that wait for a disk.
//!
//! - [`SmallFile`]: a small file that is replaced as a whole; [`create_dir`], [`durable_rename`], [`sync_dir`].
//! - [`DirectoryLock`]: exclusive use of a directory by one process.
//! - [`FreeSpace`]: room on a disk, injected so that a test can fill one.
//! - [`blocking`], [`aside`], [`Aside`]: work that waits for a disk, or takes long, away from the runtime's threads.

mod blocking;
mod files;
mod space;

pub use blocking::{Aside, aside, blocking};
pub use files::{
    DirectoryLock, DurableError, SmallFile, create_dir, durable_rename, sync_dir, write_atomically,
};
pub use space::{FileSystem, FreeSpace};
