//! `mcctl check`: says what this machine can do for the pool, and what keeps it from more.

mod rdma;
mod transports;

use anyhow::Result;
use clap::Subcommand;
use mc_console::{Ended, Global, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// RDMA devices, and which of them --rdma-devices uses; exit code 0: at least one, 1: none
    Rdma,
    /// Transport by which bytes go between this machine and each store, and why not by a better one; exit code 0: bytes went to
    /// all, 1: not to some
    ///
    /// An object of 64 KiB is put on each store, read and removed.
    Transports,
}

pub(crate) async fn check(global: &Global, command: &CheckCommand, output: Output) -> Result<Ended> {
    match command {
        CheckCommand::Rdma => Ok(rdma::rdma(global, output)),
        CheckCommand::Transports => transports::transports(global, output).await,
    }
}
