//! The end of standard input as a sign that whoever started this process is gone.

use std::io::Read as _;

/// Returns when standard input ends. A test harness keeps the other end of a pipe open: when the harness is killed, the
/// system closes it, so nothing that it started is left behind.
///
/// The read blocks a thread of its own, which nothing joins: it does not hold up a runtime that is shut down.
pub async fn stdin_eof() {
    let (ended, end) = tokio::sync::oneshot::channel();
    let reader = move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = [0; 64];
        // What is written there means nothing; an error is an end as well.
        while matches!(stdin.read(&mut buffer), Ok(1..)) {}
        // Nobody listens any more: then there is nobody to tell.
        let _ = ended.send(());
    };
    if std::thread::Builder::new().name("stdin-eof".into()).spawn(reader).is_err() {
        tracing::warn!("no thread to watch standard input: this process will not notice its end");
        std::future::pending::<()>().await;
    }
    // An error would mean that the thread died without a word, which is no reason to stop.
    if end.await.is_err() {
        std::future::pending::<()>().await;
    }
}
