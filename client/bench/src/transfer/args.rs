//! Arguments of the bench of a transport.

use clap::{Args, ValueEnum};
use mc_types::ByteSize;

#[derive(Clone, Debug, Args)]
pub(crate) struct TransferArgs {
    /// Bytes of each operation
    #[arg(long, default_value = "1mb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Number of operations in each call
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) batch: u32,
    /// Number of calls at a time, all of one client
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) callers: u32,
    /// get: from the store. put: to it
    #[arg(long, value_enum, default_value_t = Direction::Get)]
    pub(crate) direction: Direction,
    /// Whether the client computes checksums of all bytes
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub(crate) checksum: OnOff,
    /// Memory of the client's buffers
    ///
    /// allocated: by the transport, so that stores of the host map it, and others reach it by RDMA. other: any other, which is
    /// copied once more.
    #[arg(long, value_enum, default_value_t = Memory::Allocated)]
    pub(crate) memory: Memory,
    /// Memory of the store that the operations go through in turn
    #[arg(long, default_value = "1gb", value_name = "SIZE")]
    pub(crate) region: ByteSize,
    /// Time the calls also beside streams of gets of this size, each of which the same client makes one after the other
    #[arg(long, value_name = "SIZE")]
    pub(crate) beside: Option<ByteSize>,
    /// Number of the streams of --beside
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) streams: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    Allocated,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Get,
    Put,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnOff {
    On,
    Off,
}
