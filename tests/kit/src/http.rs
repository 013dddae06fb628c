use std::io;

use mc_process::http::request;

/// Sends a GET, bounded by two seconds; returns the status code and the body.
pub async fn http_get(address: &str, path: &str) -> io::Result<(u16, String)> {
    request("GET", address, path).await
}

/// Whether the process at this HTTP address can do its part.
pub async fn is_ready(address: &str) -> bool {
    matches!(http_get(address, "/readyz").await, Ok((200, _)))
}
