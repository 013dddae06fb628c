//! Decoders that nobody outside calls, for tests/fuzz: each function says whether it could be read.

use std::path::Path;

use clap::CommandFactory as _;

use crate::config::Flags;
use crate::data_dir::{decode, encode};

/// The body of a store's identity.
pub fn identity(body: &[u8]) -> bool {
    let Some((store, cluster)) = decode(body) else { return false };
    assert_eq!(encode(store, cluster), body, "there is one way to write an identity");
    true
}

/// A configuration file of `mc-store`.
pub fn config(file: &Path) -> bool {
    let args = ["mc-store".into(), "--config".into(), file.as_os_str().to_owned()];
    let loaded = mc_base::config::load::<Flags>(Flags::command(), args, |_| None);
    loaded.is_ok_and(|loaded| loaded.args.store.check().is_ok())
}
