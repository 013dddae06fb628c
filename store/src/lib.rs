//! Lends memory to the pool.
mod config;
mod data_dir;
mod link;
mod memory;
