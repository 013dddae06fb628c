//! `mc-master`: one of the masters of a pool.

use std::process::ExitCode;

/// A master allocates for each key of a batch and frees it on another thread, which costs the C library's allocator a fifth
/// of a master's time (docs/adr/0008).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mc_master::main_with(std::env::args_os())
}
