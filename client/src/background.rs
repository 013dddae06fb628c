//! The runtime of a client: where everything runs that outlives a call.
//!
//! Who owns which task:
//! - The client's thread drives the runtime: its timers, its sockets, and all tasks. A caller's runtime may end, or be driven
//!   only while a call is made, and neither must stop discovery, watches, renewals, revokes or publishing.
//! - Connections belong to the runtime on which they are made. So calls are polled by the caller's threads, but in the context of
//!   this runtime: their sockets and timers are this thread's, and the futures themselves need no runtime.
//! - The thread ends when the last clone of the client and the task that closes it are gone. A call borrows a clone, so no
//!   call is left then whose timers have lost their runtime.

use std::convert::Infallible;
use std::future::Future;
use std::io;

use futures::future::Either;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::context::TokioContext;
use tracing::Instrument as _;

/// A handle to the runtime of a client.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    handle: Handle,
    /// Keeps the client's own thread alive; `None` if the runtime is the caller's.
    life: Option<mpsc::Sender<Infallible>>,
}

impl Background {
    /// Uses `given`, or starts a thread.
    pub(crate) fn start(given: Option<Handle>) -> io::Result<Self> {
        if let Some(handle) = given {
            return Ok(Self { handle, life: None });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (life, mut ended) = mpsc::channel(1);
        std::thread::Builder::new().name("mc-client".to_owned()).spawn(move || {
            // It returns when every sender is dropped.
            runtime.block_on(ended.recv());
            // Blocking work of a call that was dropped, such as a registration of memory, is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, life: Some(life) })
    }

    /// The runtime, without keeping it alive.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a call of that many items in a span, and in the context of the client's own runtime.
    ///
    /// A runtime that the caller gave may end during the call, and timers of a runtime that has ended panic. So with such a
    /// one the call stays in the context that it is made in.
    pub(crate) fn run<F: Future>(
        &self,
        operation: &'static str,
        items: usize,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let call = call.instrument(tracing::debug_span!("mc_client", operation, items));
        match &self.life {
            Some(_) => Either::Left(TokioContext::new(call, self.handle.clone())),
            None => Either::Right(call),
        }
    }

    /// Runs a call to its end, blocking this thread, in the context of the runtime.
    ///
    /// # Panics
    /// In a thread that drives async tasks, which would all stand still meanwhile.
    pub(crate) fn wait<F: Future>(&self, call: F) -> F::Output {
        self.handle.block_on(call)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[test]
    fn a_call_needs_no_runtime_of_its_caller() {
        let background = Background::start(None).unwrap();
        let call = background.run("test", 1, async {
            sleep(Duration::from_millis(1)).await;
            tokio::spawn(async { 7 }).await.unwrap()
        });
        assert_eq!(futures::executor::block_on(call), 7);
    }

    #[tokio::test]
    async fn the_thread_ends_with_the_last_handle_to_it_also_where_it_is_dropped_by_a_task() {
        let background = Background::start(None).unwrap();
        let (held, ended) = oneshot::channel::<()>();
        background.handle().spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let clone = background.clone();
        drop(background);
        assert_eq!(clone.run("test", 1, async { 7 }).await, 7);
        drop(clone);
        let ended = timeout(Duration::from_secs(20), ended).await;
        assert!(ended.expect("the thread goes on").is_err(), "its tasks are dropped");
    }
}
