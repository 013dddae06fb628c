//! `mcctl check`: says what this machine can do for the pool, and what keeps it from more.

mod rdma;
mod transports;

use anyhow::Result;

use crate::Ended;
use crate::args::{CheckCommand, Global};
use crate::output::Output;

pub(crate) async fn check(global: &Global, command: &CheckCommand, output: Output) -> Result<Ended> {
    match command {
        CheckCommand::Rdma => Ok(rdma::rdma(global, output)),
        CheckCommand::Transports => transports::transports(global, output).await,
    }
}
