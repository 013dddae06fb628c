//! Failed calls and their meaning: errors with a definite and with an unknown outcome, and how the client
//! does without any leader, from its local cache.
//!
//!     cargo run -p mc-client --example outcomes -- 127.0.0.1:50051
//!
//! Half-way it asks for all masters to be stopped: run it on a pool that is there for that. `mcctl playground` starts
//! one and prints its masters' addresses. They are the argument, comma-separated. Without it they are taken from
//! MC_MASTERS, and without that a master is looked for on this machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_client::{Client, Code, Error, Mode, Put};

const KEPT: &str = "example/outcomes/kept";
const GONE: &str = "example/outcomes/gone";
const LATER: &str = "example/outcomes/later";
pub(crate) const VALUE: &[u8] = b"the keys and values of 512 tokens";

type Failure = Box<dyn std::error::Error>;

/// Evidence that an object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The remove was answered.
    Answered,
    /// The remove had an unknown outcome, and a read found no object.
    FoundOut,
}

#[tokio::main]
async fn main() -> ExitCode {
    // Set but empty is not set.
    let from_env = || std::env::var("MC_MASTERS").ok().filter(|list| !list.is_empty());
    let masters = std::env::args().nth(1).or_else(from_env).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    let outage = async { println!("now stop all masters, such as by Ctrl-C where the playground runs") };
    match run(&masters, outage).await {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The code of a definite error, how a remove went; and, after `outage` has stopped the masters or has asked for that,
/// what a put did and what a get answered.
pub(crate) async fn run(
    masters: &str,
    outage: impl Future<Output = ()>,
) -> Result<(Code, Gone, Put, Bytes), Failure> {
    let client = Client::builder()
        .masters(masters)
        // Objects that were put or read here lately. 0 is off, and then nothing answers without a leader.
        .local_cache("64mb".parse()?)
        // A shorter one gives up on an election that is under way, a longer one holds calls for so long.
        .leader_timeout(Duration::from_secs(1))
        .connect()
        .await?;
    if !client.connected(Duration::from_secs(10)).await {
        return Err(format!("no leader answers at {masters}: is a pool running there?").into());
    }
    let refused = refused(&client).await?;
    put_for_sure(&client, GONE, VALUE).await?;
    let gone = remove_for_sure(&client, GONE).await?;
    println!("remove {GONE}: {gone:?}");
    put_for_sure(&client, KEPT, VALUE).await?;
    // The put has filled the cache, unless the key was there already; reading fills it in either case.
    client.get(KEPT).await?;

    outage.await;
    let (put, cached) = without_a_leader(&client).await?;
    Ok((refused, gone, put, cached))
}

/// A definite error: the call did nothing. The code is there to decide by; the text says what was attempted, where it
/// failed, why, and what to do.
async fn refused(client: &Client) -> Result<Code, Failure> {
    match client.put("", VALUE).await {
        Err(error) if !error.is_unknown() => {
            println!("definite: {error}");
            Ok(error.code)
        }
        other => Err(format!("a put under an empty key: {other:?}").into()),
    }
}

/// An unknown outcome: the call may have taken effect, or may do so shortly. Of a put under a key that names its
/// content that does not matter: it is put again, and `Stored` and `AlreadyExists` both mean that it is there.
async fn put_for_sure(client: &Client, key: &str, value: &[u8]) -> Result<Put, Error> {
    match client.put(key, value).await {
        Err(error) if error.is_unknown() => {
            println!("unknown: {error}");
            client.put(key, value).await
        }
        known => known,
    }
}

/// The client never repeats a remove by itself: the repetition could hit what somebody else has put meanwhile. A read
/// tells whether that is necessary, and only the caller knows whether it is right.
async fn remove_for_sure(client: &Client, key: &str) -> Result<Gone, Error> {
    match client.remove(key, true).await {
        Ok(_) => Ok(Gone::Answered),
        Err(error) if error.is_unknown() => {
            println!("unknown: {error}");
            if client.exist(key).await? { Err(error) } else { Ok(Gone::FoundOut) }
        }
        Err(error) => Err(error),
    }
}

/// Shows a client without a leader: gets are answered from its cache, puts stay in it, a remove fails.
///
/// The client enters and leaves local-only mode by itself. Until it has noticed that no leader answers, a call waits up
/// to its deadline; afterwards no call waits.
async fn without_a_leader(client: &Client) -> Result<(Put, Bytes), Failure> {
    let patience = Instant::now() + Duration::from_secs(60);
    while client.mode() == Mode::Connected {
        if Instant::now() > patience {
            return Err("the masters were not stopped within a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.exist(KEPT).await?;
    }
    println!("no leader answers, {} bytes are in the local cache", client.stats().cache_bytes);

    // From the cache: it may have been removed or replaced in the pool since.
    let Some(cached) = client.get(KEPT).await? else {
        return Err(format!("{KEPT} is not in the local cache").into());
    };
    println!("get {KEPT}: {} bytes", cached.len());
    // A success, but no acknowledgement: this client alone has the value, for as long as its cache keeps it.
    let put = client.put(LATER, VALUE).await?;
    println!("put {LATER}: {put:?}");
    // A call that the cache can't answer fails, and has changed nothing.
    match client.remove(KEPT, true).await {
        Err(error) if error.code == Code::NoLeader && !error.is_unknown() => println!("definite: {error}"),
        other => return Err(format!("a remove without a leader: {other:?}").into()),
    }
    Ok((put, cached))
}
