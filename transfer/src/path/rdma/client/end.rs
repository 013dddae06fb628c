//! The client's end of a pair.

use std::sync::Arc;

use mc_verbs::{Capacity, Kind, QueuePair, Timing};

use crate::control::wire::End;
use crate::memory::{NoRdma, Rdma};
use crate::path::rdma::completions::Completions;
use crate::path::rdma::ends::end_of;

/// Number of messages that the store may send before this end has taken the first. It sends one for each request.
const MESSAGES: u32 = 8;
/// Maximum number of reads of the store that are answered at once.
const READS_AT_ONCE: u8 = 16;

/// The client's end of a pair. The client posts no requests: the store does, and sends a message when its bytes have
/// arrived.
pub(crate) struct ClientEnd {
    pair: Arc<QueuePair>,
    completions: Completions,
    device: usize,
    ours: End,
    timing: Timing,
}

impl ClientEnd {
    /// Creates an end that is not connected. It goes out through `device`, and wishes for the store's device `theirs`.
    pub(crate) fn new(rdma: &Rdma, device: usize, theirs: u16) -> Result<Self, NoRdma> {
        let failed = |error: mc_verbs::VerbsError| NoRdma(error.to_string());
        let here = rdma
            .devices()
            .opened
            .get(device)
            .ok_or_else(|| NoRdma(format!("there is no RDMA device {device}")))?;
        let completions = Completions::new(here.domain.device(), MESSAGES + 2).map_err(NoRdma)?;
        let reads_at_once = here.limits.reads_at_once.clamp(1, READS_AT_ONCE);
        let capacity = Capacity { requests: 1, pieces: 1, messages: MESSAGES, reads_at_once, remote: true };
        let pair = QueuePair::new(&here.domain, completions.queue(), here.path()?, capacity, rand::random());
        let pair = pair.map_err(failed)?;
        pair.expect_messages(0, MESSAGES as usize).map_err(|error| NoRdma(error.to_string()))?;
        let ours = end_of(&pair, reads_at_once, theirs);
        Ok(Self { pair: Arc::new(pair), completions, device, ours, timing: rdma.devices().timing() })
    }

    /// This end, for the store.
    pub(crate) fn end(&self) -> End {
        self.ours
    }

    /// Connects it with the store's end.
    pub(crate) fn connect(&self, theirs: &End) -> Result<(), NoRdma> {
        self.pair.connect(&theirs.into(), self.timing).map_err(|error| NoRdma(error.to_string()))
    }

    /// Number of its device.
    pub(crate) fn device_number(&self) -> usize {
        self.device
    }

    /// Name of its device.
    pub(crate) fn device_name(&self) -> &str {
        self.pair.device().name()
    }

    /// Queue pair of this end. Destroying it ends every access by the store.
    pub(crate) fn pair(&self) -> &Arc<QueuePair> {
        &self.pair
    }

    /// Returns once the store has sent the message `number`: the bytes that it wrote before are then visible here.
    pub(crate) async fn notified(&mut self, number: u32) -> Result<(), NoRdma> {
        loop {
            let mut notified = false;
            for completion in self.completions.next().await.map_err(NoRdma)? {
                match completion.result {
                    Ok(Kind::Received(message)) => {
                        notified |= message == number;
                        self.pair.expect_messages(0, 1).map_err(|error| NoRdma(error.to_string()))?;
                    }
                    Ok(Kind::Sent) => {}
                    Err(failure) => return Err(NoRdma(failure.to_string())),
                }
            }
            if notified {
                return Ok(());
            }
        }
    }
}
