//! The stores of a simulated cluster. One of them lends memory and does nothing else: it may die and come back, and what it
//! held is gone then. The others are real ones ([`lender`](crate::lender)), and only fall silent.

use std::sync::Arc;
use std::time::Duration;

use mc_proto::v1;
use mc_tests::Seeded;
use mc_types::{SegmentEpoch, StoreId};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::caller::{Caller, caller};
use crate::pool::Pool;

pub(crate) const STORES: usize = 3;
/// The number of the one that may die.
pub(crate) const MORTAL: usize = 0;
/// Patience with one attempt.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Fate of the store that may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lives,
    /// Its process was killed.
    Dead,
    /// It takes its memory back and lends other memory.
    Unmounts,
}

/// The fate of the store that may die, and how often it came back with nothing.
#[derive(Clone)]
pub(crate) struct Mortal(Arc<Mutex<(Fate, usize)>>);

impl Mortal {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new((Fate::Lives, 0))))
    }

    pub(crate) fn set(&self, fate: Fate) {
        self.0.lock().0 = fate;
    }

    fn fate(&self) -> Fate {
        self.0.lock().0
    }

    fn came_back(&self) {
        self.0.lock().1 += 1;
    }

    fn has_unmounted(&self) {
        let mut inner = self.0.lock();
        if inner.0 == Fate::Unmounts {
            inner.0 = Fate::Lives;
        }
    }

    /// How often it mounted memory in which nothing was left.
    pub(crate) fn returns(&self) -> usize {
        self.0.lock().1
    }
}

/// Whether what this store holds may be gone although nobody removed it.
pub(crate) fn may_forget(store: StoreId) -> bool {
    store == id_of(MORTAL)
}

fn id_of(number: usize) -> StoreId {
    StoreId(number as u64 + 1)
}

/// The numbers of those that are real ones.
pub(crate) fn real() -> impl Iterator<Item = usize> {
    (0..STORES).filter(|number| *number != MORTAL)
}

pub(crate) fn name_of(number: usize) -> String {
    format!("store{number}")
}

/// The store that may die: mounts, and beats wherever the leader is. Nobody serves its memory at `address`.
pub(crate) async fn store(address: String, mut caller: Caller, mut rng: Seeded, mortal: Mortal) {
    let fate = || mortal.fate();
    let store = bytes::Bytes::copy_from_slice(&id_of(MORTAL).to_bytes());
    let mut first = true;
    loop {
        while fate() == Fate::Dead {
            sleep(Duration::from_millis(10)).await;
        }
        let epoch = bytes::Bytes::copy_from_slice(&SegmentEpoch(rng.bits() | 1).to_bytes());
        let mut mounted = false;
        while fate() == Fate::Lives {
            if mount(&address, &mut caller, &store, &epoch).await {
                if !first && !mounted {
                    mortal.came_back();
                }
                mounted = true;
                beat(&mut caller, &store, &epoch, || fate() == Fate::Lives).await;
            }
        }
        first = false;
        if fate() == Fate::Unmounts {
            let request = v1::UnmountStoreRequest { caller: self::caller(), store_id: store.clone(), epoch };
            let _ = caller.attempt(async |mut master| master.unmount_store(request).await).await;
            mortal.has_unmounted();
        }
    }
}

async fn mount(address: &str, caller: &mut Caller, store: &bytes::Bytes, epoch: &bytes::Bytes) -> bool {
    let mount = v1::MountStoreRequest {
        caller: self::caller(),
        store_id: store.clone(),
        name: name_of(MORTAL),
        epoch: epoch.clone(),
        grant_key: vec![7; 32].into(),
        endpoints: vec![v1::Endpoint {
            transport: "tcp".into(),
            address: address.to_owned(),
            ..Default::default()
        }],
        segment_bytes: vec![Pool::SEGMENT],
        http_address: String::new(),
    };
    caller.attempt(async |mut master| master.mount_store(mount).await).await.is_ok()
}

/// Beats until an answer is missing, or the store is not to live.
async fn beat(caller: &mut Caller, store: &bytes::Bytes, epoch: &bytes::Bytes, lives: impl Fn() -> bool) {
    let (beats, stream) = tokio::sync::mpsc::channel(1);
    let beat = |sequence| v1::StoreHeartbeat {
        caller: self::caller(),
        store_id: store.clone(),
        epoch: epoch.clone(),
        sequence,
        transports: Vec::new(),
        tls: None,
    };
    // The call is answered when the first beat is.
    let _ = beats.try_send(beat(0));
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let Ok(mut replies) = caller.attempt(async |mut master| master.heartbeat(stream).await).await else {
        return;
    };
    for sequence in 1.. {
        match timeout(Duration::from_millis(500), replies.message()).await {
            Ok(Ok(Some(reply))) if reply.mounted => {}
            _ => return,
        }
        sleep(Duration::from_millis(200)).await;
        if !lives() || beats.send(beat(sequence)).await.is_err() {
            return;
        }
    }
}
