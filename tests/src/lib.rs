//! Tests of the whole system: real processes that are killed and restarted, and a checker that decides whether the
//! answers to the clients can be explained.
//!
//! - [`Cluster`] starts, stops, kills and restarts masters and stores as child processes.
//! - [`Daemon`] is `mc-master` or `mc-store` as an executable of its own.
//! - [`Workload`] runs clients that do seeded random operations and record each in a [`History`].
//! - [`checker`] judges a history: per-key linearizability.
//! - [`service`] judges whether clients were answered at all, and soon enough.
//! - [`Faults`] fails a run in which a planned fault did not happen.
//! - [`Faulty`] makes a master's disk and clocks misbehave; [`Links`] does so for the network between masters and from
//!   clients.
//! - [`Scrape`] reads a page of metrics, and [`Expression`] what of it a query of Prometheus selects.
//! - [`Power`] removes from a data directory the changes that a loss of power could take.
//!
//! The helpers panic where a test would: their errors are the test's failure.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod bulk;
pub mod by_hand;
mod certificates;
pub mod checker;
mod cluster;
mod command;
mod excuses;
mod exe;
mod faults;
mod faulty;
mod flip;
mod history;
mod huge_pages;
mod logged;
mod lossy;
mod machine;
mod power;
mod process;
mod promql;
mod roll;
mod scrape;
pub mod service;
mod small_disk;
mod suspicions;
mod unwritten;
mod values;
mod workload;

pub use bulk::{bulk_key, fill};
pub use certificates::{Certificates, network_of};
pub use cluster::{Cluster, ClusterBuilder};
pub use command::{mcctl, mcctl_as};
pub use exe::mcctl_exe;
pub use faults::{Fault, Faults};
pub use faulty::{DiskError, Faulty, Lie};
pub use history::{History, Recorder};
pub use huge_pages::HugePages;
pub use logged::{Logged, Overtaken, overtaken};
pub use lossy::LossyMaster;
pub use machine::Machine;
pub use mc_testkit::{
    Daemon, Link, Links, Ports, Seeded, assert_refused, bare_command, eventually, http_get, is_ready,
    passed_over, printed_config, report, setting, unit_arguments, until, until_within,
};
pub use power::{Power, Taken};
pub use process::Process;
pub use promql::{Expression, Matcher, Selector};
pub use roll::{RollDisk, RollOrder};
pub use scrape::{Family, Scrape, Series};
pub use small_disk::SmallDisk;
pub use unwritten::unwritten_puts_show_nothing;
pub use values::{digest, slice, value};
pub use workload::{Deadlines, Ledger, Mix, Running, Workload, tenant_key};
