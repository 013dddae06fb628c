use std::io;

use mc_process::http::request;

/// One GET, bounded by two seconds: the status code and the body.
///
/// # Errors
/// When nobody answers there.
pub async fn http_get(address: &str, path: &str) -> io::Result<(u16, String)> {
    request("GET", address, path).await
}
