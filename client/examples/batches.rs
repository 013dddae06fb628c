//! Many objects a call: each has a result of its own. Then the same without copies, from and to registered memory.
//!
//!     cargo run -p mc-client --example batches -- 127.0.0.1:50051
//!
//! The argument is the masters' addresses, comma-separated. Without it they are taken from MC_MASTERS, and without that
//! a master is looked for on this machine. `mcctl playground` starts a pool and prints its masters' addresses.

use std::process::ExitCode;
use std::time::Duration;

use mc_client::{Client, Error, GetInto, Put, PutFrom, PutOptions, RegisteredMemory};

pub(crate) const BLOCK: usize = 64 << 10;
const BLOCKS: [&str; 3] = ["example/batches/block 0", "example/batches/block 1", "example/batches/never put"];
pub(crate) const LAYERS: [&str; 2] = ["example/batches/layer 0", "example/batches/layer 1"];

type Failure = Box<dyn std::error::Error>;
type Puts = Vec<Result<Put, Error>>;

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

/// Answers how the puts by value went, how many of the gets were hits, and what was read in place.
pub(crate) async fn run(masters: &str) -> Result<(Puts, usize, RegisteredMemory), Failure> {
    let client = Client::builder().masters(masters).connect().await?;
    if !client.connected(Duration::from_secs(10)).await {
        return Err(format!("no leader answers at {masters}: is a pool running there?").into());
    }
    let (puts, hits) = by_value(&client).await?;
    let read = in_place(&client).await?;
    Ok((puts, hits, read))
}

/// Each call takes any number of items and cuts them into requests itself.
async fn by_value(client: &Client) -> Result<(Puts, usize), Failure> {
    // The last key cannot be one: that costs the others nothing.
    let items = [(BLOCKS[0], vec![b'0'; BLOCK]), (BLOCKS[1], vec![b'1'; BLOCK]), ("", vec![b'2'; BLOCK])];
    let options = PutOptions::default().with_deadline(Duration::from_secs(10));
    let puts = client.batch_put(&items, &options).await;
    // One result for each item, in the order of the items.
    for ((key, _), put) in items.iter().zip(&puts) {
        match put {
            Ok(put) => println!("put {key:?}: {put:?}"),
            Err(error) => println!("put {key:?}: {error}"),
        }
    }

    let mut hits = 0;
    for (key, value) in BLOCKS.iter().zip(client.batch_get(&BLOCKS).await) {
        match value? {
            Some(value) => {
                hits += 1;
                println!("get {key:?}: {} bytes", value.len());
            }
            None => println!("get {key:?}: a miss"),
        }
    }
    for (key, removed) in BLOCKS.iter().zip(client.batch_remove(&BLOCKS, true).await) {
        println!("remove {key:?}: {}", removed?);
    }
    Ok((puts, hits))
}

/// The bytes go straight between the caller's memory and the stores; the local cache is not filled, since that would
/// take a copy.
async fn in_place(client: &Client) -> Result<RegisteredMemory, Failure> {
    // Registered memory is allocated here, or made of a vector below. TCP takes any other memory as well.
    let mut from = client.allocate(2 * BLOCK)?;
    let (keys, values) = from.as_mut_slice().split_at_mut(BLOCK);
    keys.fill(b'k');
    values.fill(b'v');

    // An object's bytes may lie apart; they are one object in the pool.
    let (keys, values) = from.as_slice().split_at(BLOCK);
    let (both, one) = ([keys, values], [values]);
    let items = [PutFrom::new(LAYERS[0], &both), PutFrom::new(LAYERS[1], &one)];
    for (key, put) in LAYERS.iter().zip(client.batch_put_from(&items, &PutOptions::default()).await) {
        println!("put {key:?} from registered memory: {:?}", put?);
    }

    // Each object into its own part, which may be longer than the object, but not shorter.
    let mut into = client.register(vec![0; 4 * BLOCK]);
    let (first, second) = into.as_mut_slice().split_at_mut(2 * BLOCK);
    let mut items = [GetInto::new(LAYERS[0], vec![first]), GetInto::new(LAYERS[1], vec![second])];
    for (key, len) in LAYERS.iter().zip(client.batch_get_into(&mut items).await) {
        match len? {
            Some(len) => println!("get {key:?} into registered memory: {len} bytes"),
            None => return Err(format!("{key:?} was put and is a miss").into()),
        }
    }
    for removed in client.batch_remove(&LAYERS, true).await {
        removed?;
    }
    Ok(into)
}
