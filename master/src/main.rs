//! `mc-master`: one of the masters of a pool.

fn main() {}
