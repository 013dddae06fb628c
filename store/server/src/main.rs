//! `mc-store`: lends this machine's memory to the pool.

fn main() -> std::process::ExitCode {
    mc_store_server::main_with(std::env::args_os())
}
