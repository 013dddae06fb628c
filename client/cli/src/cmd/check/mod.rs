//! `mcctl check`: says what this machine can do for the pool, and what keeps it from more.

mod rdma;
mod transports;

use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};

use crate::Ended;
use crate::args::{CheckCommand, Global};
use crate::interrupt::Interrupts;
use crate::output::Output;

pub(crate) async fn check(global: &Global, command: &CheckCommand, output: Output) -> Result<Ended> {
    match command {
        CheckCommand::Rdma => Ok(rdma::rdma(global, output)),
        CheckCommand::Transports => {
            let mut interrupts = Interrupts::catch().context("cannot catch signals")?;
            let over = AtomicBool::new(false);
            interrupts.wind_down(transports::transports(global, output, &over), &over).await?
        }
    }
}
