//! `mc-master`: one of the masters of a pool.

use std::process::ExitCode;

fn main() -> ExitCode {
    mc_master::main_with(std::env::args_os())
}
