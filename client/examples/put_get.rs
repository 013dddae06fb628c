//! One object, from its put to its remove.
//!
//!     cargo run -p mc-client --example put_get -- 127.0.0.1:50051
//!
//! The argument is the masters' addresses, comma-separated. Without it they are taken from MC_MASTERS, and without that
//! a master is looked for on this machine. `mcctl playground` starts a pool and prints its masters' addresses.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use mc_client::{Client, Put};

pub(crate) const KEY: &str = "example/put_get";
pub(crate) const VALUE: &[u8] = b"the keys and values of 512 tokens";

#[tokio::main]
async fn main() -> ExitCode {
    // Set but empty is not set.
    let from_env = || std::env::var("MC_MASTERS").ok().filter(|list| !list.is_empty());
    let masters = std::env::args().nth(1).or_else(from_env).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    match run(&masters).await {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers how the put went, the value and the size that came back, and whether there was something to remove.
pub(crate) async fn run(masters: &str) -> Result<(Put, Bytes, u64, bool), Box<dyn Error>> {
    let client = Client::builder().masters(masters).connect().await?;
    // `connect` succeeds even if no master answers: the client goes on looking for them by itself, and answers from its
    // local cache meanwhile. There is nothing to show without them, though.
    if !client.connected(Duration::from_secs(10)).await {
        return Err(format!("no leader answers at {masters}: is a pool running there?").into());
    }

    // A put leaves a value that is there as it is, and says so: right for keys that name their content. `Stored` is an
    // acknowledgement: from now on the loss of a master cannot undo it.
    let put = client.put(KEY, VALUE).await?;
    println!("put {KEY}: {put:?}");

    // A miss is not an error: a cache may have evicted the object or lost a store, and the caller can compute the value
    // again.
    let Some(value) = client.get(KEY).await? else {
        return Err(format!("{KEY} was put and is a miss").into());
    };
    println!("get {KEY}: {} bytes", value.len());

    // Only the leader is asked, no bytes are moved.
    println!("exist {KEY}: {}", client.exist(KEY).await?);
    let size = client.size(KEY).await?.unwrap_or(0);
    println!("size {KEY}: {size}");

    // `force`, since an object that was just read is leased to its readers for some seconds.
    let removed = client.remove(KEY, true).await?;
    println!("remove {KEY}: {removed}");
    Ok((put, value, size, removed))
}
