//! The entry point that `MC_FUZZ_TARGET` names, for `cargo fuzz`.
#![no_main]

use std::sync::LazyLock;

use mc_fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("MC_FUZZ_TARGET").unwrap_or_default();
    mc_fuzz::named(&name).unwrap_or_else(|error| panic!("MC_FUZZ_TARGET: {error}"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (TARGET.read)(data);
});
