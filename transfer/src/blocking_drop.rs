//! Drops values that take long to free on a thread for blocking work, so that no task of a runtime waits for them.

use std::ops::{Deref, DerefMut};

/// A value whose drop blocks, such as that of a queue pair or of gigabytes. It is dropped on a thread for blocking work, where there
/// is a runtime.
pub(crate) struct BlockingDrop<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> BlockingDrop<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Takes the value out, to be dropped here.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().unwrap_or_else(|| unreachable!("{TAKEN}"))
    }
}

const TAKEN: &str = "the value is taken when the wrapper is consumed";

impl<T: Send + 'static> Deref for BlockingDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("{TAKEN}"))
    }
}

impl<T: Send + 'static> DerefMut for BlockingDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap_or_else(|| unreachable!("{TAKEN}"))
    }
}

impl<T: Send + 'static> Drop for BlockingDrop<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_blocking(value);
        }
    }
}

/// Drops a value on a thread for blocking work; here where there is no runtime.
pub(crate) fn drop_blocking(value: impl Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
        Err(_) => drop(value),
    }
}
