//! Sockets within this host: abstract Unix sockets, which are visible in one network namespace and leave no file.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;

use tokio::net::{UnixListener, UnixStream};

/// Listens on an abstract name.
///
/// # Errors
/// The system's error: the name is in use.
pub fn listen_local(name: &str) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Connects to an abstract name. It never waits: it fails at once if no process listens, or if too many connections
/// wait to be accepted.
pub fn connect_local(name: &str) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    UnixStream::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_reached_while_somebody_listens() {
        let name = format!("mc-net-test-{}", std::process::id());
        assert_eq!(connect_local(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen_local(&name).unwrap();
        assert_eq!(listen_local(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (_here, there) = (connect_local(&name).unwrap(), listener.accept().await.unwrap().0);
        assert_eq!(there.peer_cred().unwrap().uid(), rustix::process::geteuid().as_raw());
        drop(listener);
        assert!(connect_local(&name).is_err());
    }
}
