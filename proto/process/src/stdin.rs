//! The end of standard input, as a sign that the process that started this one is gone.

use std::io::Read as _;

/// Waits until standard input ends. A test harness keeps the other end of a pipe open. When the harness is killed, the
/// system closes that end, so no process that it started is left behind.
///
/// The read blocks a thread of its own. Nothing joins that thread, so it does not hold up the shutdown of a runtime.
pub async fn stdin_eof() {
    let (ended, end) = tokio::sync::oneshot::channel();
    let reader = move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = [0; 64];
        // Input is ignored; an error counts as the end.
        while matches!(stdin.read(&mut buffer), Ok(1..)) {}
        // Fails only when the caller no longer waits.
        let _ = ended.send(());
    };
    if std::thread::Builder::new().name("stdin-eof".into()).spawn(reader).is_err() {
        tracing::warn!("cannot watch standard input: this process will not notice when it ends");
        std::future::pending::<()>().await;
    }
    // An error means that the thread died without a message, which is no reason to stop.
    if end.await.is_err() {
        std::future::pending::<()>().await;
    }
}
