//! Work on memory of a caller, on a thread for blocking work.

use std::panic::resume_unwind;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::task::spawn_blocking;

/// Work was not run, because the runtime of its call has ended.
#[derive(Debug, thiserror::Error)]
#[error("copies from and to memory of GPUs need the runtime on which the call was made, and it has ended")]
pub(super) struct RuntimeEnded;

/// Runs work that may use memory of the caller of this. It has ended when the future returns or is dropped.
///
/// A drop while the work waits for a thread keeps it from ever beginning. A drop while it runs waits for its end, which takes no other
/// thread and no lock of the caller's: work is a batch of copies of at most a buffer, or its allocation. Like any copy, it waits
/// for the work that the caller has given the GPU before.
pub(super) async fn run<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<RuntimeEnded> + Send + 'static,
{
    let turn = Arc::new(Turn::default());
    let ends = EndsAtDrop(turn.clone());
    let work = spawn_blocking(move || {
        let _running = turn.begin()?;
        Some(work())
    });
    let done = work.await;
    drop(ends);
    match done {
        Ok(Some(done)) => done,
        Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
        // It has not begun and never will: it has no turn any more.
        Ok(None) | Err(_) => Err(RuntimeEnded.into()),
    }
}

#[derive(Default)]
struct Turn {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    Waiting,
    Running,
    /// The work has ended, or will never begin.
    Over,
}

impl Turn {
    /// Begins the work, unless it is over.
    fn begin(self: Arc<Self>) -> Option<Running> {
        let mut state = self.state.lock();
        if *state == State::Over {
            return None;
        }
        *state = State::Running;
        drop(state);
        Some(Running(self))
    }
}

/// Work that has begun, until it ends or panics.
struct Running(Arc<Turn>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Over;
        self.0.over.notify_all();
    }
}

struct EndsAtDrop(Arc<Turn>);

impl Drop for EndsAtDrop {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if *state == State::Waiting {
            *state = State::Over;
        }
        self.0.over.wait_while(&mut state, |state| *state != State::Over);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_drop_waits_for_work_that_has_begun() {
        let ((begun, has_begun), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let mut work = Box::pin(run(move || {
            begun.send(()).unwrap();
            goes_on.recv().unwrap();
            end.store(true, Ordering::SeqCst);
            Ok::<_, RuntimeEnded>(())
        }));
        assert!(work.as_mut().now_or_never().is_none());
        has_begun.recv().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            go_on.send(()).unwrap();
        });
        drop(work);
        assert!(ended.load(Ordering::SeqCst));
    }

    #[test]
    fn work_of_a_future_that_was_dropped_before_does_not_begin() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let ran = Arc::new(AtomicBool::new(false));
        runtime.block_on(async {
            let first = spawn_blocking(move || held.recv());
            let run_it = ran.clone();
            let second = run(move || {
                run_it.store(true, Ordering::SeqCst);
                Ok::<_, RuntimeEnded>(())
            });
            let second = second.now_or_never();
            assert!(second.is_none());
            drop(release);
            first.await.unwrap().unwrap_err();
            spawn_blocking(|| ()).await.unwrap();
        });
        assert!(!ran.load(Ordering::SeqCst));
    }

    #[test]
    fn work_of_a_runtime_that_has_ended_fails() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _context = handle.enter();
        let ran = run(|| Ok::<_, RuntimeEnded>(())).now_or_never();
        assert!(matches!(ran, Some(Err(RuntimeEnded))), "{ran:?}");
    }

    #[tokio::test]
    async fn work_that_panics_panics_its_caller() {
        let run = std::panic::AssertUnwindSafe(run(|| -> Result<(), RuntimeEnded> { panic!("on purpose") }));
        assert!(run.catch_unwind().await.is_err());
    }
}
