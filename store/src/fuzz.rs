//! Decoders that nobody outside calls, for tests/fuzz: each function says whether it could be read.

use std::path::Path;

use clap::CommandFactory as _;
use mc_base::{Clock, ClusterId, ClusterTime};
use mc_transfer::Authority;

use crate::config::Flags;
use crate::data_dir::{decode, encode};

/// The body of a store's identity.
pub fn identity(body: &[u8]) -> bool {
    let Some((store, cluster)) = decode(body) else { return false };
    assert_eq!(encode(store, cluster), body, "there is one way to write an identity");
    true
}

/// Which cluster answered a mount or a heartbeat, and its time, by which the grants of clients expire.
pub fn cluster_time(cluster: &[u8], ms: u64) -> bool {
    let Some(cluster) = ClusterId::from_bytes(cluster) else { return false };
    let authority = Authority::new(Clock::monotonic());
    for time in [ClusterTime(ms), ClusterTime(0)] {
        authority.learn(cluster, time);
        let known = authority.now();
        assert!(known.is_some_and(|(of, now)| of == cluster && now.0 >= ms), "time goes back: {known:?}");
    }
    true
}

/// A configuration file of `mc-store`.
pub fn config(file: &Path) -> bool {
    let args = ["mc-store".into(), "--config".into(), file.as_os_str().to_owned()];
    let loaded = mc_base::config::load::<Flags>(Flags::command(), args, |_| None);
    loaded.is_ok_and(|loaded| loaded.args.store.check().is_ok())
}
