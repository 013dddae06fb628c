//! The fault matrix: what a cluster of real processes does under each fault that it can meet, as docs/fault-matrix.md
//! shows it. A test is a row: a fault in one role.
//!
//!     cargo test -p mc-tests --test matrix                                    # a few rounds of each row
//!     MC_MATRIX_ROUNDS=30 cargo test --release -p mc-tests --test matrix -- --test-threads 1 kill
//!
//! Each row runs clients that read and write all the time, does its fault again and again, and prints a line of JSON: the service that it
//! promises to each client in numbers, what the worst client got, round by round (median and longest gap), and that every answer the
//! clients saw fits one order of events in which nothing acknowledged was lost.

/// Rows, each a test: its name, and what runs it.
macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident => $row:expr;)*) => {
        $(
            $(#[$doc])*
            #[tokio::test]
            async fn $name() {
                $row.await;
            }
        )*
    };
}

mod clients;
mod clocks;
mod disks;
mod distance;
mod engines;
mod evictions;
mod files;
mod kept;
mod kills;
mod membership;
mod needs;
mod network;
mod partitions;
mod pauses;
mod rdma;
#[path = "../common/replay.rs"]
mod replay;
mod round;
mod rounds;
mod row;
mod shared_memory;
mod small_disk;
mod snapshots;
mod starvation;
mod stores;
mod tls;
mod transport;
mod witness;
