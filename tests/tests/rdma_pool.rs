//! The whole pool by RDMA. It needs a verbs device: see tests/rdma/run.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use mc_client::{Builder, Client, GetIntoOwned, PutFrom, PutOptions, ShmAccess, Transports};
use mc_tests::{Cluster, ClusterBuilder, Faults, Workload, unwritten_puts_show_nothing, value};
use mc_transfer::{HostMemory, Rdma, RdmaDevices, RdmaOptions, TcpOptions, TcpTransport};

/// An emulated guest is slow: elections must not come of that.
fn pool() -> ClusterBuilder {
    Cluster::builder().stores(2).segment("64mb").master_args(["--raft-timing", "wan"])
}

fn by(cluster: &Cluster, transports: Transports) -> Builder {
    cluster.client_builder().transports(transports).shared_memory(ShmAccess::SameUid)
}

async fn connect(builder: Builder) -> Client {
    let client = builder.connect().await.unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client
}

fn workload(seed: u64) -> Workload {
    Workload::new(seed).clients(2).keys(8).sizes(20_000..400_000).pace(Duration::from_millis(20))
}

async fn moved(cluster: &Cluster, store: usize) -> f64 {
    cluster.store_metric_sum(store, "mc_store_rdma_bytes_total").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn one_pool_serves_clients_of_every_transport_through_a_leader_kill() {
    const SIZE: usize = 3 << 20;
    let mut cluster = pool().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed");
    let running = workload(1).start(&by(&cluster, Transports::Rdma)).await;
    let clients = [
        connect(by(&cluster, Transports::Rdma)).await,
        connect(by(&cluster, Transports::Tcp)).await,
        connect(by(&cluster, Transports::Shm)).await,
    ];
    let exchange = async |round: u64| {
        for (nth, client) in (0..).zip(&clients) {
            let key = format!("of {nth} in {round}");
            client.put(&key, &value(&key, round, SIZE)).await.unwrap();
            for reader in &clients {
                assert!(
                    reader.get(&key).await.unwrap().as_deref() == Some(&value(&key, round, SIZE)[..]),
                    "{key}"
                );
            }
        }
    };
    exchange(1).await;
    running.acknowledged(10).await;
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    fault.happened();
    running.acknowledged(10).await;
    exchange(2).await;
    cluster.masters[leader].start();
    cluster.ready().await;
    running.acknowledged(10).await;
    running.stop().await.assert_nothing_lost(&cluster);

    let (client, bytes) = (&clients[0], value("allocated", 1, SIZE));
    let mut memory = client.allocate(2 * SIZE).unwrap();
    memory.as_mut_slice()[..SIZE].copy_from_slice(&bytes);
    let slices = [&memory.as_slice()[..SIZE]];
    let item = PutFrom::new("allocated", &slices);
    client.batch_put_from(&[item], &PutOptions::default()).await.remove(0).unwrap();
    let into = vec![memory.split_off(SIZE)];
    let got = client.batch_get_into_owned(vec![GetIntoOwned::new("allocated", into)]).await.remove(0);
    assert_eq!(got.read.unwrap(), Some(SIZE));
    assert!(got.into[0].as_slice() == bytes);

    assert_eq!(clients[0].rdma_devices(), Ok(vec!["rxe0".to_owned()]));
    let why_not = clients[1].rdma_devices().unwrap_err().to_string();
    assert!(why_not.contains("limited to tcp"), "{why_not}");
    for (client, by) in clients.iter().zip(["rdma", "tcp", "shm"]) {
        let peers = client.transports();
        assert_eq!(peers.len(), 2, "{peers:?}");
        for peer in peers {
            let used = peer.transports.iter().find(|transport| transport.usable);
            assert_eq!(used.map(|transport| transport.name), Some(by), "{peer:?}");
        }
    }
    let [rdma, tcp, shm] = clients.each_ref().map(Client::stats);
    assert_eq!((rdma.rdma_bytes_read, rdma.shm_bytes_read), (rdma.bytes_read, 0), "{rdma:?}");
    assert_eq!(rdma.rdma_bytes_written, rdma.bytes_written, "{rdma:?}");
    assert_eq!((tcp.rdma_bytes_read + tcp.rdma_bytes_written, tcp.shm_bytes_read), (0, 0), "{tcp:?}");
    assert_eq!(
        (shm.rdma_bytes_read + shm.rdma_bytes_written, shm.shm_bytes_read),
        (0, shm.bytes_read),
        "{shm:?}"
    );
    let at_stores = moved(&cluster, 0).await + moved(&cluster, 1).await;
    assert!(
        at_stores >= (rdma.bytes_read + rdma.bytes_written) as f64,
        "{at_stores} bytes by RDMA at the stores"
    );
    let status = cluster.store_status(0).await;
    let rdma = status["transports"].as_array().unwrap().iter().find(|one| one["name"] == "rdma").unwrap();
    assert!(rdma["how"].as_str().unwrap().contains("1 of 1 segments are registered"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn by_rdma_a_put_that_was_not_written_shows_nothing() {
    let cluster = pool().masters(1).stores(1).start().await;
    let rdma = Rdma::open(&RdmaDevices::Auto, &RdmaOptions::default()).unwrap();
    let only = true;
    let transport =
        TcpTransport::with_rdma(TcpOptions::default(), &HostMemory::new(), rdma, only, Box::new(|_, _| {}));
    unwritten_puts_show_nothing(&cluster, &transport).await;
    assert!(moved(&cluster, 0).await > 0.0, "bytes go by RDMA");
}
