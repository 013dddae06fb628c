use std::io;
use std::net::SocketAddr;

use mc_types::HostPort;

/// Resolves a host to all its present addresses, distinct and sorted. An IP address resolves to itself.
///
/// # Errors
/// The error of the system's resolver; a name without any address is [`io::ErrorKind::NotFound`].
pub async fn resolve(address: &HostPort) -> io::Result<Vec<SocketAddr>> {
    if let Some(ip) = address.ip() {
        return Ok(vec![SocketAddr::new(ip, address.port())]);
    }
    let found = tokio::net::lookup_host((address.host(), address.port())).await?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", address.host())));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_resolves_to_all_its_addresses_once() {
        let addresses = resolve(&HostPort::parse("localhost", 9).unwrap()).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 9));
        let mut distinct = addresses.clone();
        distinct.dedup();
        assert_eq!(addresses, distinct);
    }
}
