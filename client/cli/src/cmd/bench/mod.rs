//! `mcctl bench`: measures the pool, and the limits of this machine in the same run.

mod allocator;
mod alone;
mod failover;
mod fleet;
mod full;
mod load;
mod machine;
mod masters;
mod parts;
mod pool;
mod replay;
mod report;
mod restart;
mod transfer;

use anyhow::{Context, Result};
use mc_console::{Ended, Global, Interrupts, Output};

use crate::args::{BenchArgs, BenchCommand};

pub(crate) async fn bench(global: &Global, args: &BenchArgs, output: Output) -> Result<Ended> {
    let mut interrupts = Interrupts::catch().context("cannot catch signals")?;
    match &args.what {
        BenchCommand::Put(args) => load::bench(load::Kind::Put, global, args, output, &mut interrupts).await,
        BenchCommand::Get(args) => load::bench(load::Kind::Get, global, args, output, &mut interrupts).await,
        BenchCommand::Exist(args) => {
            load::bench(load::Kind::Exist, global, args, output, &mut interrupts).await
        }
        BenchCommand::Lookup(args) => {
            load::bench(load::Kind::Lookup, global, args, output, &mut interrupts).await
        }
        BenchCommand::Mixed(args) => {
            load::bench(load::Kind::Mixed, global, args, output, &mut interrupts).await
        }
        // Their pools end with them.
        BenchCommand::Failover(args) => interrupts.until(failover::bench(global, args, output)).await?,
        BenchCommand::Restart(args) => interrupts.until(restart::bench(global, args, output)).await?,
        BenchCommand::Replay(args) => interrupts.until(replay::bench(global, args, output)).await?,
        BenchCommand::Fleet(args) => interrupts.until(fleet::bench(global, args, output)).await?,
        BenchCommand::Allocator(args) => interrupts.until(allocator::bench(global, args, output)).await?,
        BenchCommand::Full(args) => interrupts.until(full::bench(global, args, output)).await?,
        BenchCommand::Transfer(args) => interrupts.until(transfer::bench(global, args, output)).await?,
        BenchCommand::TransferStore(args) => interrupts.until(transfer::store::serve(global, args)).await?,
    }
}
