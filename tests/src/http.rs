use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// One GET, bounded by two seconds: the status code and the body.
///
/// # Errors
/// When nobody answers there.
pub async fn http_get(address: &str, path: &str) -> io::Result<(u16, String)> {
    request("GET", address, path).await
}

/// One POST without a body; as [`http_get`].
///
/// # Errors
/// When nobody answers there.
pub async fn http_post(address: &str, path: &str) -> io::Result<(u16, String)> {
    request("POST", address, path).await
}

async fn request(method: &str, address: &str, path: &str) -> io::Result<(u16, String)> {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n");
        stream.write_all(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {answer}"));
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
        let body = answer.split_once("\r\n\r\n").ok_or_else(bad)?.1;
        Ok((code, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await?
}
