use std::ops::RangeInclusive;
use std::time::Duration;

use mc_proto::v1::master_client::MasterClient;
use mc_proto::{VERSIONS, common_version, v1};
use mc_types::{ClusterId, NodeId, TlsLevel};

use super::report::{ClusterReport, HelloError, named};
use super::token_channel::TokenChannel;
use super::within::within;
use crate::Leader;

/// Asks a master for the leader; waits up to `limit` for the answer.
///
/// # Errors
/// [`HelloError`] when the master does not say.
pub async fn hello(
    client: &mut MasterClient<TokenChannel>,
    software: &str,
    limit: Duration,
) -> Result<ClusterReport, HelloError> {
    let request = v1::HelloRequest {
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
        software: software.to_owned(),
    };
    match within(limit, client.hello(request)).await {
        Some(Ok(reply)) => read_hello(reply.into_inner()),
        Some(Err(status)) => Err(HelloError::of(&status)),
        None => Err(HelloError::Silent("no answer".to_owned())),
    }
}

/// Reads the answer to a hello.
///
/// # Errors
/// [`HelloError::VersionSkew`] when both have no protocol version in common.
pub fn read_hello(reply: v1::HelloReply) -> Result<ClusterReport, HelloError> {
    let theirs = reply.version_min..=reply.version_max;
    if common_version(VERSIONS, theirs.clone()).is_none() {
        return Err(HelloError::VersionSkew(versions(&theirs, &reply.software)));
    }
    Ok(ClusterReport {
        cluster: ClusterId::from_bytes(&reply.cluster_id),
        node: NodeId::from_bytes(&reply.node_id),
        leader: Leader::read(reply.leader.as_ref()),
        masters: named(reply.masters),
        tls_level: TlsLevel::of_number(reply.tls_level),
    })
}

/// Formats a range of protocol versions and the software that speaks them.
#[must_use]
pub fn versions(range: &RangeInclusive<u32>, software: &str) -> String {
    format!("{} to {} ({software})", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_speaks_no_common_version_is_refused_in_words() {
        let newer = VERSIONS.end() + 1;
        let reply = v1::HelloReply {
            version_min: newer,
            version_max: newer + 1,
            software: "mc-master 9.0.0".into(),
            ..v1::HelloReply::default()
        };
        let skewed = read_hello(reply.clone()).unwrap_err();
        assert_eq!(skewed, HelloError::VersionSkew(format!("{newer} to {} (mc-master 9.0.0)", newer + 1)));
        let common = v1::HelloReply { version_min: *VERSIONS.end(), ..reply };
        assert!(read_hello(common).is_ok(), "it may speak newer ones besides");
    }
}
