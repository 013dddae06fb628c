/// Completes when standard input is closed, if `watched`; never otherwise.
///
/// A parent that holds the other end of the pipe takes its children along when it dies, however it dies: nothing has
/// to be sent, and no process is left behind. Must be called in a runtime.
pub async fn stdin_closed(watched: bool) {
    if !watched {
        std::future::pending::<()>().await;
    }
    let (closed, closing) = tokio::sync::oneshot::channel();
    // A thread of its own: a blocking read can't be cancelled, and would hold up the end of a runtime's pool.
    let reader = std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = closed.send(());
    });
    match reader {
        Ok(_) => drop(closing.await),
        Err(error) => {
            tracing::warn!("standard input is not watched, the thread did not start: {error}");
            std::future::pending().await
        }
    }
}
