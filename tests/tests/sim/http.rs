//! Calls of the masters' HTTP ports.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::machine::HTTP;
use crate::net::{Host, Net, address_of};

/// A request, and whose it is.
pub(crate) struct Request<'a> {
    pub(crate) from: Host,
    pub(crate) to: Host,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) body: &'a str,
}

/// Returns the code and body of a master's answer.
pub(crate) async fn exchange(net: &Net, request: Request<'_>) -> io::Result<(u16, String)> {
    let Request { from, to, method, path, body } = request;
    let mut stream = net.dial(from, address_of(to, HTTP)).await?;
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: master\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}
