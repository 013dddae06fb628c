//! A reader that holds the index for long, on a machine with one Raft thread.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use mc_testkit::until;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::lease::writable::RaftInstant;
use crate::testing::{Pool, command};

/// Time after which a reader gives the index back, and the test fails. One that passes is over long before.
const AT_MOST: Duration = Duration::from_secs(30);

/// A reader that holds the index of a master until it is dropped.
struct Reader {
    release: Option<mpsc::Sender<()>>,
    /// Returns whether the test let it go.
    thread: Option<JoinHandle<bool>>,
}

impl Reader {
    fn of(pool: &Pool, at: usize) -> Self {
        let index = pool.node(at).index().clone();
        let ((held, is_held), (release, released)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::spawn(move || {
            index.read(|_| {
                held.send(()).unwrap();
                // Not for ever: an apply that waits for this on the only Raft thread would stop the test's clock, too.
                released.recv_timeout(AT_MOST) == Err(mpsc::RecvTimeoutError::Disconnected)
            })
        });
        is_held.recv().unwrap();
        Self { release: Some(release), thread: Some(thread) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.release.take());
        let was_let_go = self.thread.take().is_none_or(|thread| thread.join().unwrap_or(false));
        assert!(
            was_let_go || std::thread::panicking(),
            "Raft stood still until the reader gave the index back"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_leader_whose_index_is_read_for_a_second_under_writes_goes_on_leading() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let before = pool.write(0).await;
    let at = pool.leader().await;
    let leader = pool.node(at);
    let reader = Reader::of(&pool, at);
    let writes: Vec<_> = (1..=200)
        .map(|value| {
            let raft = leader.raft().clone();
            tokio::spawn(async move { raft.client_write(command(value)).await.unwrap().log_id })
        })
        .collect();
    let second = RaftInstant::now() + Duration::from_secs(1);
    until("a majority follows the leader after a second of this", async || {
        let metrics = leader.raft().metrics().borrow_watched().clone();
        metrics.last_quorum_acked.is_some_and(|sent| sent.into_inner() > second)
    })
    .await;
    assert!(writes.iter().all(|write| !write.is_finished()), "no entry was applied meanwhile");
    drop(reader);
    let mut last = before;
    for write in writes {
        last = last.max(write.await.unwrap());
    }
    assert_eq!(last.leader_id.term, before.leader_id.term);
    assert_eq!(pool.write(201).await.leader_id.term, before.leader_id.term);
}

/// The leader commits with the acknowledgements of a follower that applies nothing for as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_follower_whose_index_is_read_takes_thousands_of_appends() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let before = pool.write(0).await;
    let leader = pool.leader().await;
    pool.converge(before).await;
    pool.stop((leader + 1) % 3).await;
    let reader = Reader::of(&pool, (leader + 2) % 3);
    let mut last = before;
    for value in 0..1_500 {
        last = pool.write(value).await;
    }
    assert_eq!(last.leader_id.term, before.leader_id.term);
    drop(reader);
    pool.converge(last).await;
}
