use std::collections::HashMap;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

/// Longest time for which an abandoned handshake is kept. A master that was cut off in the middle of one gets another connection then.
const KEPT: Duration = Duration::from_secs(2);

/// Handshakes with masters that go on after their callers have given up, one for each address; the next connect to the address takes
/// it over.
///
/// Callers have little patience, because a master that is silent may be gone. A leader that a whole fleet moves to is slow instead.
/// If each of these callers began another handshake, the leader would compute only handshakes that no caller waits for.
#[derive(Debug, Default)]
pub(crate) struct Dials(Mutex<HashMap<String, Dial>>);

/// A handshake that is under way in a task, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Dial {
    began: Instant,
    task: JoinSet<io::Result<TlsStream<TcpStream>>>,
}

impl Dial {
    /// Begins a handshake in a task of this runtime.
    pub(crate) fn begin(
        handshake: impl Future<Output = io::Result<TlsStream<TcpStream>>> + Send + 'static,
    ) -> Self {
        let mut task = JoinSet::new();
        task.spawn(handshake);
        Self { began: Instant::now(), task }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() > KEPT
    }
}

impl Dials {
    /// Returns the handshake with `address` that a caller has left, if there is one.
    pub(crate) fn take(&self, address: &str) -> Option<Dial> {
        let mut left = self.0.lock();
        left.retain(|_, dial| !dial.is_over());
        left.remove(address)
    }

    /// Waits for a handshake. If this future is dropped first, the handshake is left for the next caller.
    pub(crate) async fn finish(&self, address: &str, dial: Dial) -> io::Result<TlsStream<TcpStream>> {
        let mut waiting = Waiting { dials: self, address, dial: Some(dial) };
        let Some(dial) = &mut waiting.dial else { return Err(io::ErrorKind::Interrupted.into()) };
        let ended = dial.task.join_next().await;
        waiting.dial = None;
        match ended {
            Some(ended) => ended.map_err(io::Error::other)?,
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

/// A caller that waits for a handshake.
struct Waiting<'a> {
    dials: &'a Dials,
    address: &'a str,
    dial: Option<Dial>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(dial) = self.dial.take() {
            self.dials.0.lock().insert(self.address.to_owned(), dial);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt as _, StreamExt as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::runtime::Builder;

    use super::*;
    use crate::tls::tests::{Authority, MASTER, WRITER};

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_its_handshake_to_the_next_one() {
        let ours = Authority::new();
        let (server, client) = (ours.process(MASTER), ours.process(WRITER));
        // The server's threads for handshakes, which do nothing yet.
        let threads = Builder::new_current_thread().build().unwrap();
        server.tls.shake_hands_on(threads.handle().clone());
        let mut listener = server.listen().await;
        let address = listener.address.to_string();
        let served = tokio::spawn(async move {
            let mut accepted = listener.incoming.next().await.unwrap()?;
            accepted.read_exact(&mut [0]).await?;
            accepted.write_all(b"!").await?;
            accepted.flush().await?;
            io::Result::Ok(listener)
        });
        let its_hello_waits = async {
            while threads.metrics().num_alive_tasks() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = client.network.connect(&address) => panic!("the server has done nothing"),
            () = its_hello_waits => {}
        }
        std::thread::spawn(move || threads.block_on(std::future::pending::<()>()));
        let asked = async {
            let mut connection = client.network.connect(&address).await?;
            connection.write_all(b"?").await?;
            connection.flush().await?;
            connection.read_u8().await
        };
        let both = async { tokio::join!(served, asked) };
        let (served, asked) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        let mut listener = served.unwrap().unwrap();
        assert_eq!(asked.unwrap(), b'!');
        assert!(listener.incoming.next().now_or_never().is_none(), "it has connected twice");
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_takes_too_long_is_ended() {
        let dials = Dials::default();
        let lives = Arc::new(());
        let held = lives.clone();
        let mut dial = Dial::begin(async move {
            let _held = held;
            std::future::pending().await
        });
        for _ in 0..2 {
            assert!(dials.finish("a", dial).now_or_never().is_none());
            dial = dials.take("a").expect("it is left");
        }
        assert!(dials.finish("a", dial).now_or_never().is_none());
        tokio::time::advance(KEPT + Duration::from_millis(1)).await;
        assert!(dials.take("a").is_none());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&lives), 1, "its task has ended");
    }
}
