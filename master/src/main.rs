//! `mc-master`: one of the masters of a pool.

use std::process::ExitCode;

/// Allocator of the process. A master allocates for each key of a batch and frees it on another thread, which with the
/// C library's allocator takes a fifth of the master's time (docs/adr/0008).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mc_master::main_with(std::env::args_os())
}
