#![no_main]
#![allow(missing_docs, reason = "a fuzz target")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::run("store_config", data));
