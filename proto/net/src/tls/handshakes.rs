//! Where handshakes are computed. A fleet that moves to a new leader makes thousands of them in a second.

use std::future::Future;
use std::io;
use std::sync::OnceLock;

use rustls::ServerConnection;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The threads that compute handshakes; those of the callers, where a process has set none.
///
/// The number of these threads is the cap on the processor time of handshakes. Work is handed to them once its bytes have come, and
/// without the socket. So a slow or silent peer occupies no thread and holds no permit, and a connection that is dropped in the
/// middle of its handshake closes its socket at once.
#[derive(Debug, Default)]
pub(super) struct Handshakes(OnceLock<Handle>);

impl Handshakes {
    /// Computes handshakes on the threads of `runtime` from now on. Only the first call counts.
    pub(super) fn set(&self, runtime: Handle) {
        let _ = self.0.set(runtime);
    }

    /// Does the handshake of a connection that was accepted, up to its last byte.
    ///
    /// # Errors
    /// The socket's error, or one of kind `InvalidData` with that of TLS.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        mut session: ServerConnection,
    ) -> io::Result<(TcpStream, ServerConnection)> {
        loop {
            while session.wants_write() {
                match session.write_tls(&mut Socket(&stream)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stream.ready(Interest::WRITABLE).await?;
                    }
                    written => drop(written?),
                }
            }
            if !session.is_handshaking() {
                return Ok((stream, session));
            }
            match session.read_tls(&mut Socket(&stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.ready(Interest::READABLE).await?;
                    continue;
                }
                Ok(0) => {
                    let why = "the other end closed the connection in the middle of the handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                read => drop(read?),
            }
            let compute = async move {
                let computed = session.process_new_packets().map(drop);
                (session, computed)
            };
            let (next, computed) = tokio::select! {
                biased;
                computed = self.run(compute) => computed?,
                // Else work for peers that have given up keeps the others waiting until they give up, too.
                () = closed(&stream) => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            session = next;
            if let Err(error) = computed {
                // An alert tells the peer why; the connection is over in any case.
                let _ = session.write_tls(&mut Socket(&stream));
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }

    /// Runs `work` on the threads; work that has not begun ends when this future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(runtime) = self.0.get() else { return Ok(work.await) };
        // The set ends its task when it is dropped; a handle alone does not.
        let mut one = JoinSet::new();
        one.spawn_on(work, runtime);
        match one.join_next().await {
            Some(done) => done.map_err(io::Error::other),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

/// Returns when the other end has closed the connection, unless it has said something else before.
async fn closed(stream: &TcpStream) {
    if let Ok(1) = stream.peek(&mut [0]).await {
        std::future::pending::<()>().await;
    }
}

/// A socket, as rustls reads and writes it.
struct Socket<'a>(&'a TcpStream);

impl io::Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use futures::{FutureExt as _, StreamExt as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::connection::Connection;
    use crate::gate::{Greeting, Rules};
    use crate::network::Listener;
    use crate::room::Room;
    use crate::tls::HANDSHAKE;
    use crate::tls::tests::{Authority, MASTER, Process, WRITER, named};

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    /// The threads for handshakes of a process, which do nothing until [`Self::start`].
    struct Threads(Runtime);

    impl Threads {
        fn of(process: &Process) -> Self {
            let runtime = Builder::new_current_thread().build().unwrap();
            process.tls.shake_hands_on(runtime.handle().clone());
            Self(runtime)
        }

        fn waiting(&self) -> usize {
            self.0.metrics().num_alive_tasks()
        }

        async fn until_one_waits(&self) {
            while self.waiting() == 0 {
                tokio::task::yield_now().await;
            }
        }

        fn start(self) {
            std::thread::spawn(move || self.0.block_on(std::future::pending::<()>()));
        }
    }

    async fn gated(server: &Process, most: usize) -> Listener {
        let rules = Rules {
            users: "tests",
            greeting: Greeting::Http2,
            room: Arc::new(move || Room { most, kept: 0 }),
            lifetime: None,
        };
        server.listen().await.gated(rules)
    }

    /// Connects to a server, and says the greeting.
    async fn greet(client: &Process, address: SocketAddr) -> io::Result<Connection> {
        let mut connection = client.network.connect(&address.to_string()).await?;
        connection.write_all(PREFACE).await?;
        connection.flush().await?;
        Ok(connection)
    }

    /// Fails if a test takes minutes.
    async fn soon<T>(test: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(120), test).await.expect("it never happens")
    }

    #[tokio::test]
    async fn the_handshakes_of_both_ends_are_computed_on_their_threads_alone() {
        let ours = Authority::new();
        let (server, client) = (ours.process(MASTER), ours.process(WRITER));
        let (of_server, of_client) = (Threads::of(&server), Threads::of(&client));
        let mut listener = gated(&server, 9).await;
        let address = listener.address;
        let mut dialing = Box::pin(greet(&client, address));
        let mut accepted = listener.incoming.next();
        soon(async {
            tokio::select! {
                _ = &mut dialing => panic!("the client computed it itself"),
                () = of_client.until_one_waits() => of_client.start(),
            }
            tokio::select! {
                _ = &mut dialing => panic!("there is no server yet"),
                _ = &mut accepted => panic!("the server computed it itself"),
                () = of_server.until_one_waits() => of_server.start(),
            }
            let (dialed, accepted) = tokio::join!(dialing, accepted);
            assert!(dialed.is_ok());
            assert_eq!(accepted.unwrap().unwrap().info().peer, named(WRITER));
        })
        .await;
    }

    #[tokio::test]
    async fn a_thousand_peers_that_stop_in_their_handshakes_hold_up_no_other() {
        const MANY: usize = 1_000;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let ours = Authority::new();
        let (server, client) = (ours.process(MASTER), ours.process(WRITER));
        let threads = Threads::of(&server);
        let mut listener = gated(&server, 2 * MANY).await;
        soon(async {
            let mut halves = Vec::new();
            for _ in 0..MANY {
                let mut half = crate::tcp::connect(listener.address).await.unwrap();
                // The head of a record of 200 bytes, and the first of them.
                half.write_all(&[HANDSHAKE, 3, 1, 0, 200, 1]).await.unwrap();
                halves.push(half);
                assert!(listener.incoming.next().now_or_never().is_none());
            }
            threads.start();
            let dialing = greet(&client, listener.address);
            let (dialed, accepted) = tokio::join!(dialing, listener.incoming.next());
            assert!(dialed.is_ok() && accepted.unwrap().is_ok());
            for half in &mut halves {
                assert!(half.read_u8().now_or_never().is_none(), "it was closed");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_in_its_handshake_gives_its_socket_back_at_once() {
        let ours = Authority::new();
        let (server, client) = (ours.process(MASTER), ours.process(WRITER));
        let threads = Threads::of(&server);
        let mut listener = gated(&server, 1).await;
        let address = listener.address;
        soon(async {
            let dialing = greet(&client, address);
            let first = async {
                tokio::select! {
                    dialed = dialing => dialed.err(),
                    _ = listener.incoming.next() => panic!("it had its handshake"),
                    () = async {
                        threads.until_one_waits().await;
                        // It takes the place of the first, whose hello waits for the threads.
                        let _second = crate::tcp::connect(address).await.unwrap();
                        std::future::pending::<()>().await;
                    } => None,
                }
            };
            assert!(first.await.is_some());
            assert_eq!(threads.waiting(), 1, "the threads have not looked at it");
        })
        .await;
        // A runtime waits for its threads when it is dropped, which async code may not.
        threads.0.shutdown_background();
    }
}
