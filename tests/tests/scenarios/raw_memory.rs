//! Calls on memory that is named by its address.
#![allow(unsafe_code, reason = "the calls under test take addresses")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_client::{ByteSize, Client, Put, PutFromRaw, PutOptions, RawBytes, ShmAccess};
use mc_tests::Cluster;

const LEN: usize = 300_000;

/// Memory that another thread keeps changing.
#[derive(Clone, Copy)]
struct Shared(NonNull<u8>);

// SAFETY: memory that lasts until the process ends, and is reached by copies and volatile writes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(vec![0_u8; LEN].into_boxed_slice())).cast())
    }

    fn raw(self) -> RawBytes {
        // SAFETY: it is never freed, and has no references.
        unsafe { RawBytes::new(self.0, LEN) }
    }

    fn fill(self, byte: u8) {
        for at in 0..LEN {
            // SAFETY: inside.
            unsafe { self.0.add(at).as_ptr().write_volatile(byte) };
        }
    }
}

async fn uncached(cluster: &Cluster, access: ShmAccess) -> Client {
    let builder = cluster.client_builder().shared_memory(access).local_cache(ByteSize(0));
    builder.require_leader(true).connect().await.unwrap()
}

/// The bytes of a value that changes while it is put are some mixture. Whoever reads it, over whatever way and from whatever
/// replica, gets that mixture or a miss.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_during_its_put_has_one_value_or_none() {
    const PUTS: usize = 60;
    let cluster = Cluster::builder().masters(1).stores(2).segment("128mb").start().await;
    let (tcp, shm) = (uncached(&cluster, ShmAccess::Off).await, uncached(&cluster, ShmAccess::SameUid).await);
    let (source, is_over) = (Shared::new(), std::sync::Arc::new(AtomicBool::new(false)));
    let is_over_too = is_over.clone();
    let changing = std::thread::spawn(move || {
        for byte in (0..=255).cycle().take_while(|_| !is_over_too.load(Ordering::Relaxed)) {
            source.fill(byte);
        }
    });
    let options = PutOptions::default().with_replicas(2);
    for nth in 0..PUTS {
        let client = if nth % 2 == 0 { &tcp } else { &shm };
        let item = PutFromRaw::new(format!("k{nth}"), vec![source.raw()]).with_group("group");
        let put = client.batch_put_from_raw(vec![item], &options).await.remove(0);
        // Its replicas may differ, but at least one stays.
        assert_eq!(put.unwrap(), Put::Stored);
    }
    is_over.store(true, Ordering::Relaxed);
    changing.join().unwrap();
    let group = tcp.describe("k0").await.unwrap().and_then(|object| object.group);
    assert_eq!(group.map(|group| group.members), Some(PUTS as u32));
    let (mut hits, mut mixtures) = (0, 0);
    for nth in 0..PUTS {
        let mut values = Vec::new();
        for _ in 0..3 {
            values.extend(tcp.get(format!("k{nth}")).await.unwrap());
            values.extend(shm.get(format!("k{nth}")).await.unwrap());
        }
        assert!(values.windows(2).all(|two| two[0] == two[1]), "k{nth} has two values");
        hits += values.len();
        mixtures += usize::from(values.iter().any(|value| value.iter().any(|byte| *byte != value[0])));
    }
    assert!(hits > 0 && mixtures > 0, "{hits} hits, {mixtures} mixtures: nothing changed during a put");
}
