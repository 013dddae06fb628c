//! An object written and read layer by layer, as an engine does whose model computes or needs one layer at a time.
//!
//!     cargo run -p mc-client --example sessions -- 127.0.0.1:50051
//!
//! The argument is the masters' addresses, comma-separated. Without it they are taken from MC_MASTERS, and without that
//! a master is looked for on this machine. `mcctl playground` starts a pool and prints its masters' addresses.

use std::process::ExitCode;
use std::time::Duration;

use mc_client::{
    ByteRange, Client, GetSession, Put, PutOptions, PutSession, RangeFrom, RangeInto, ReadInto, WriteFrom,
};

pub(crate) const LAYERS: u8 = 8;
const LAYER: usize = 64 << 10;
/// Two blocks of a prompt; each is one object with all layers.
pub(crate) const BLOCKS: [&str; 2] = ["example/sessions/block 0", "example/sessions/block 1"];

type Failure = Box<dyn std::error::Error>;

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

/// Answers the first byte of each layer of each block, as it was read.
pub(crate) async fn run(masters: &str) -> Result<Vec<[u8; 2]>, Failure> {
    let client = Client::builder().masters(masters).connect().await?;
    if !client.connected(Duration::from_secs(10)).await {
        return Err(format!("no leader answers at {masters}: is a pool running there?").into());
    }
    put(&client).await?;
    let layers = get(&client).await?;
    for removed in client.batch_remove(&BLOCKS, true).await {
        removed?;
    }
    Ok(layers)
}

/// Puts the layers while they are computed, here from the last to the first.
async fn put(client: &Client) -> Result<(), Failure> {
    // One call to the leader for all blocks.
    let size = u64::from(LAYERS) * LAYER as u64;
    let opened = client.batch_put_session(&BLOCKS.map(|key| (key, size)), &PutOptions::default()).await;
    let mut sessions: Vec<PutSession> = Vec::new();
    for session in opened {
        sessions.push(session?.ok_or("the example's objects exist already")?);
    }
    for layer in (0..LAYERS).rev() {
        let bytes = vec![layer; LAYER];
        let range = [RangeFrom { offset: offset(layer), from: &bytes }];
        let writes: Vec<_> = sessions.iter().map(|session| WriteFrom::new(session, &range)).collect();
        for written in client.batch_write_from(&writes).await {
            written?;
        }
    }
    // And one to make the blocks visible.
    for (key, put) in BLOCKS.iter().zip(client.batch_finish(&sessions).await) {
        let put: Put = put?;
        println!("put {key:?}, {LAYERS} layers: {put:?}");
    }
    Ok(())
}

/// Gets a layer of all blocks at a time. The sessions keep the blocks from being evicted in between.
async fn get(client: &Client) -> Result<Vec<[u8; 2]>, Failure> {
    let mut sessions: Vec<GetSession> = Vec::new();
    for session in client.batch_get_session(&BLOCKS).await {
        sessions.push(session?.ok_or("a block was put and is a miss")?);
    }
    let mut read = Vec::new();
    let mut memory = client.register(vec![0; BLOCKS.len() * LAYER]);
    for layer in 0..LAYERS {
        let mut reads: Vec<_> = sessions
            .iter()
            .zip(memory.as_mut_slice().chunks_mut(LAYER))
            .map(|(session, into)| ReadInto::new(session, vec![RangeInto { offset: offset(layer), into }]))
            .collect();
        // No call to the leader: only the stores are asked.
        for bytes in client.batch_read_into(&mut reads).await {
            bytes?;
        }
        println!("got layer {layer} of {} blocks", sessions.len());
        read.push([memory.as_slice()[0], memory.as_slice()[LAYER]]);
    }
    // Without a session, ranges cost one call to the leader each time.
    let first = ByteRange { offset: 0, len: 16 };
    println!("got {first} of {:?}: {:?}", BLOCKS[0], client.get_range(BLOCKS[0], first).await?);
    Ok(read)
}

fn offset(layer: u8) -> u64 {
    u64::from(layer) * LAYER as u64
}
