use std::io;

use mc_process::http::request;

/// Sends a GET, bounded by two seconds; returns the status code and the body.
///
/// # Errors
/// When no HTTP answer comes in time.
pub async fn http_get(address: &str, path: &str) -> io::Result<(u16, String)> {
    request("GET", address, path).await
}
