//! Everything here that reads bytes of others, each behind one function that takes any bytes and must neither panic nor
//! ask for memory out of proportion; where something was read, writing and reading it again must give the same.
//!
//! [`TARGETS`] is the list of them, for the mutations and for `cargo fuzz` alike. Checksums are made right before bytes are
//! read, so that what lies behind them is reached.
//!
//! ```text
//! cargo test -p mc-fuzz                                                        # mutated valid inputs, fixed seeds
//! cargo run -p mc-fuzz --example corpus                                        # valid inputs for cargo fuzz
//! MC_FUZZ_TARGET=command cargo +nightly fuzz run --fuzz-dir tests/fuzz --features libfuzzer target \
//!     tests/fuzz/corpus/command                                                # as long as you like
//! ```

mod config;
mod files;
mod grants;
mod log;
mod messages;
mod snapshots;

/// Something that reads bytes of others.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which `MC_FUZZ_TARGET` gives to `cargo fuzz`.
    pub name: &'static str,
    /// Takes any bytes, and says whether they could be read.
    pub read: fn(&[u8]) -> bool,
    /// Valid inputs.
    pub valid: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    // What a master has in its log, and sends to others from there.
    Target { name: "command", read: log::command, valid: log::commands },
    Target { name: "entry", read: log::entry, valid: log::entries },
    Target { name: "membership", read: log::membership, valid: log::memberships },
    Target { name: "piece", read: mc_master::fuzz::piece, valid: log::pieces },
    Target { name: "mark", read: mc_master::fuzz::mark, valid: log::marks },
    Target { name: "mark_file", read: mc_master::fuzz::mark_file, valid: log::mark_files },
    // Other files.
    Target { name: "snapshot", read: mc_master::fuzz::index, valid: snapshots::indexes },
    Target { name: "snapshot_file", read: mc_master::fuzz::snapshot_file, valid: snapshots::files },
    Target { name: "identity", read: mc_master::fuzz::identity, valid: files::identities },
    Target { name: "store_identity", read: mc_store::fuzz::identity, valid: files::store_identities },
    Target { name: "small_file", read: files::small_file, valid: files::small_files },
    // What travels.
    Target { name: "requests", read: messages::request, valid: messages::requests },
    Target { name: "replies", read: messages::reply, valid: messages::replies },
    Target { name: "peers", read: messages::peer, valid: messages::peers },
    Target { name: "frames", read: mc_transfer::fuzz::frames, valid: grants::frames },
    Target { name: "grant", read: grants::grant, valid: grants::grants },
    Target { name: "proofs", read: mc_transfer::fuzz::proofs, valid: mc_transfer::fuzz::valid_proofs },
    Target { name: "receipts", read: mc_master::fuzz::receipts, valid: grants::receipts },
    // What people write.
    Target { name: "text", read: config::text, valid: config::texts },
    Target { name: "setting", read: config::setting, valid: config::settings },
    Target { name: "config", read: config::master, valid: config::masters },
    Target { name: "store_config", read: config::store, valid: config::stores },
];

/// The target of that name.
///
/// # Errors
/// When the list has no such target: the names that it has.
pub fn named(name: &str) -> Result<Target, String> {
    TARGETS.iter().find(|target| target.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("no target is called `{name}`; there are {}", names.join(", "))
    })
}
