//! `mcctl check`: says what this machine can do for the pool, and what keeps it from more.

mod rdma;
mod transports;

use anyhow::Result;
use mc_console::{Ended, Global, Output};

use crate::args::CheckCommand;

pub(crate) async fn check(global: &Global, command: &CheckCommand, output: Output) -> Result<Ended> {
    match command {
        CheckCommand::Rdma => Ok(rdma::rdma(global, output)),
        CheckCommand::Transports => transports::transports(global, output).await,
    }
}
