//! Scenarios that must hold whatever fails, on real processes.
//!
//! `cargo build -p mc-cli -p mc-bench` first: the processes are `mcctl run master` and `mcctl run store`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod audit;
mod bursts;
mod bytes;
mod compat;
mod dashboards;
mod data_disk;
mod engines;
mod eviction;
mod examples;
mod exits;
mod fence;
mod fleet;
mod formation;
mod full_disk;
mod full_pool;
mod groups;
mod ipv6;
mod kept;
mod kills;
mod local_only;
mod lossy;
mod members;
mod metadata;
mod monitoring;
mod mooncake_http;
mod moves;
mod operations;
mod overload;
mod own_stores;
mod power;
mod principals;
mod quotas;
mod races;
mod raw_memory;
mod removals;
mod rescue;
mod restarts;
mod rolls;
mod security;
mod segments;
mod sessions;
mod settings;
mod shared_memory;
mod start_order;
mod stores;
mod tenants;
mod to_tls;
