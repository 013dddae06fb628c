use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;

/// Runs work that waits for a disk on a thread where it holds up nobody.
///
/// A runtime of a single thread is a test's or a simulation's: there it runs at once, because the end of work on another
/// thread comes at a time that no seed repeats.
///
/// # Errors
/// When the work panics, or the runtime ends before it has begun.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
