use std::ops::{Deref, DerefMut};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;

/// Runs work that waits for a disk off the runtime's own threads, so that it holds up no other task.
///
/// On a runtime with a single thread the work runs in place. Such a runtime is a test's or a simulation's, and work on
/// another thread would end at a time that no seed reproduces.
///
/// # Errors
/// When the work panics, or the runtime ends before the work has begun.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

/// Runs work like [`blocking`] without waiting for its end. Outside of a runtime it runs in place.
pub fn aside(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread => {
            drop(runtime.spawn_blocking(work));
        }
        _ => work(),
    }
}

/// A value that takes long to drop, such as gigabytes of memory or a large file. Dropping it drops the value [`aside`].
#[derive(Debug)]
pub struct Aside<T: Send + 'static>(
    /// `None` only while `self` is consumed.
    Option<T>,
);

const CONSUMED: &str = "only into_inner and drop take it";

impl<T: Send + 'static> Aside<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Returns the value.
    pub fn into_inner(mut self) -> T {
        self.0.take().unwrap_or_else(|| unreachable!("{CONSUMED}"))
    }
}

impl<T: Send + 'static> Deref for Aside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("{CONSUMED}"))
    }
}

impl<T: Send + 'static> DerefMut for Aside<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap_or_else(|| unreachable!("{CONSUMED}"))
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            aside(move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;

    struct TellsWhere(mpsc::Sender<ThreadId>);

    impl Drop for TellsWhere {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_dropped_on_another_thread_unless_it_was_given_back() {
        let (here, dropped) = mpsc::channel();
        drop(Aside::new(TellsWhere(here.clone())));
        let dropped_on = move || dropped.recv().unwrap();
        let dropped_on = tokio::task::spawn_blocking(move || (dropped_on(), dropped_on));
        let (elsewhere, dropped_on) = dropped_on.await.unwrap();
        assert_ne!(elsewhere, thread::current().id());

        drop(Aside::new(TellsWhere(here)).into_inner());
        assert_eq!(dropped_on(), thread::current().id());
    }

    #[test]
    fn outside_of_a_runtime_it_is_dropped_at_once() {
        let (here, dropped) = mpsc::channel();
        drop(Aside::new(TellsWhere(here)));
        assert_eq!(dropped.try_recv(), Ok(thread::current().id()));
    }
}
