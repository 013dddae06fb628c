//! `mc-store`: lends this machine's memory to the pool.

fn main() -> std::process::ExitCode {
    mc_store::main_with(std::env::args_os())
}
