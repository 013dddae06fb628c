//! A connection without requests gives its buffers back.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use mc_types::Access;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use common::{CLUSTER, EPOCH, KEY, STORE, Store, grant, range, until};

/// Counts the bytes that this process holds.
struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const OPS: u16 = 4096;

#[tokio::test]
async fn an_idle_connection_keeps_no_buffers_of_its_largest_request() {
    const CONNECTIONS: usize = 200;
    let store = Store::start(1 << 20).await;
    let mut hello = b"mcTX\x00\x01\x00\x01".to_vec();
    hello.extend([&CLUSTER.to_bytes()[..], &STORE.to_bytes(), &EPOCH.to_bytes()].concat());
    // The largest request: as many ranges as a grant can have, as many operations as a request can, of no bytes each.
    let sealed = grant(Access::Read, (0..4096).map(|nth| range(nth * 64, 64, 1 << 40)).collect()).seal(&KEY);
    let mut request = [&1u64.to_be_bytes()[..], &[1, 0], &OPS.to_be_bytes()].concat();
    request.extend_from_slice(&(sealed.bytes.len() as u32).to_be_bytes());
    request.extend_from_slice(&sealed.bytes);
    (0..u32::from(OPS)).for_each(|nth| request.extend([&nth.to_be_bytes()[..], &[0; 16]].concat()));
    let reply_len = 8 + 3 + usize::from(OPS) * 6;

    let before = HELD.load(Ordering::Relaxed);
    let (mut clients, mut reply) = (Vec::new(), vec![0; reply_len]);
    for _ in 0..CONNECTIONS {
        let mut client = TcpStream::connect(&store.address).await.unwrap();
        client.write_all(&hello).await.unwrap();
        client.read_exact(&mut reply[..13]).await.unwrap();
        client.write_all(&request).await.unwrap();
        client.read_exact(&mut reply).await.unwrap();
        clients.push(client);
    }
    // Both ends of each connection are in this process.
    let each = || (HELD.load(Ordering::Relaxed) - before) / CONNECTIONS as i64;
    println!("{CONNECTIONS} connections right after their requests: {} bytes each", each());
    until("they have given their buffers back", || each() < 8 << 10).await;
    println!("{CONNECTIONS} idle connections: {} bytes each, of both ends", each());
    for client in &mut clients {
        client.write_all(&request).await.unwrap();
        client.read_exact(&mut reply).await.unwrap();
    }
}
