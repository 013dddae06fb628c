//! Alone in its process, whose descriptors and memory it counts.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "common/mod.rs"]
mod common;

use std::sync::atomic::Ordering;

use common::host::{Host, MIB, client, read};
use common::{pattern, until};
use mc_transfer::ShmAccess;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_ten_thousand_connections() {
    const CLIENTS: usize = 10_000;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    for access in [ShmAccess::SameUid, ShmAccess::Off] {
        let host = Host::start(access, MIB).await;
        let value = pattern(MIB, 1);
        host.write(0, &value, 5).await;
        let connect = async || {
            let (transport, shared) = client(access);
            let bytes = read(&transport, &host, &host.peer, (0, 20_000, 5)).await.unwrap();
            assert!(bytes == value[..20_000]);
            usize::from(shared.load(Ordering::SeqCst) > 0)
        };
        // Some memory is allocated once.
        for _ in 0..500 {
            connect().await;
        }
        let before = (open(), resident());
        let mut shared = 0;
        for _ in 0..CLIENTS {
            shared += connect().await;
        }
        // A store that is slow to close its ends has no place for another one now and then.
        let expected = if access == ShmAccess::Off { 0..1 } else { CLIENTS * 9 / 10..CLIENTS + 1 };
        assert!(expected.contains(&shared), "{shared} clients shared memory");
        until("the store has closed its ends", || host.mappings() == 1 && open() <= before.0).await;
        let grown = resident().saturating_sub(before.1);
        assert!(grown < CLIENTS * 1_000, "{grown} bytes of {CLIENTS} connections are left");
    }
}
