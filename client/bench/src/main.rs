//! `mc-bench`, which `mcctl bench` starts: measures the pool, and the limits of this machine in the same run.

mod allocator;
mod args;
mod failover;
mod fleet;
mod flood;
mod full;
mod latencies;
mod load;
mod machine;
mod masters;
mod own_pool;
mod process;
mod replay;
mod restart;
mod restart_store;
mod transfer;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use mc_console::{Ended, Global, Interrupts, Output, exit_code, not_a_command, run_to_end};

use args::{Bench, Cli};

/// The same allocator as in `mc-master`, because masters run in this executable too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Masters and stores of a bench are this executable.
    if let Some(code) = mc_testbed::role_of_this_process("mc-bench") {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let output = Output::new(cli.global.format());
    mc_console::connect::use_credentials(&cli.global);
    let measured = runtime(&cli.bench)
        .context("cannot start the runtime's threads")
        .and_then(|runtime| run_to_end(runtime, measure(&cli.global, &cli.bench, output)));
    exit_code(measured, output)
}

/// Builds a runtime with a thread per core, or per caller of a bench with fewer callers: more threads would pass a
/// single caller back and forth.
fn runtime(bench: &Bench) -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = bench.callers().map_or(cores, |callers| cores.min(callers as usize));
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

async fn measure(global: &Global, bench: &Bench, output: Output) -> Result<Ended> {
    let mut interrupts = Interrupts::catch().context("cannot catch signals")?;
    match bench {
        Bench::Put(args) => load::bench(load::Kind::Put, global, args, output, &mut interrupts).await,
        Bench::Get(args) => load::bench(load::Kind::Get, global, args, output, &mut interrupts).await,
        Bench::Exist(args) => load::bench(load::Kind::Exist, global, args, output, &mut interrupts).await,
        Bench::Lookup(args) => load::bench(load::Kind::Lookup, global, args, output, &mut interrupts).await,
        Bench::Mixed(args) => load::bench(load::Kind::Mixed, global, args, output, &mut interrupts).await,
        // Their pools end with them.
        Bench::Failover(args) => interrupts.until(failover::bench(global, args, output)).await?,
        Bench::Restart(args) => interrupts.until(restart::bench(global, args, output)).await?,
        Bench::RestartStore(args) => interrupts.until(restart_store::bench(global, args, output)).await?,
        Bench::Replay(args) => interrupts.until(replay::bench(global, args, output)).await?,
        Bench::Fleet(args) => interrupts.until(fleet::bench(global, args, output)).await?,
        Bench::Flood(args) => interrupts.until(flood::bench(global, args, output)).await?,
        Bench::Allocator(args) => interrupts.until(allocator::bench(global, args, output)).await?,
        Bench::Full(args) => interrupts.until(full::bench(global, args, output)).await?,
        Bench::Transfer(args) => interrupts.until(transfer::bench(global, args, output)).await?,
        Bench::TransferStore(args) => interrupts.until(transfer::store::serve(global, args)).await?,
    }
}
