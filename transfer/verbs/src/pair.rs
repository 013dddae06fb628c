//! Reliable connected queue pairs.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi;
use crate::choice::{LinkLayer, Path};
use crate::device::{Device, Domain};
use crate::error::VerbsError;
use crate::queue::CompletionQueue;

/// Hop limit of the packets: as many routers as IP allows by default.
const HOPS: u8 = 64;
/// Time that a peer waits before it answers "not ready" again: 12 is 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
/// Number of times to repeat a message to a peer that is not ready for it. It must be below 7, which means forever.
const NOT_READY_RETRIES: u8 = 6;

/// Address of a queue pair, for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Number of the queue pair on its device.
    pub pair: u32,
    /// Number of its first packet.
    pub first_packet: u32,
    /// Local identifier of its port; 0 on Ethernet.
    pub lid: u16,
    /// Address of its port.
    pub gid: [u8; 16],
    /// Maximum bytes of a packet's payload.
    pub mtu: u32,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of requests under way.
    pub requests: u32,
    /// Maximum number of local pieces of a request.
    pub pieces: u32,
    /// Maximum number of messages that the peer may send before this end has taken the first.
    pub messages: u32,
    /// Maximum number of reads under way, at both ends.
    pub reads_at_once: u8,
    /// Whether the peer may read and write memory of this end that is registered for it.
    pub remote: bool,
}

/// Retransmission settings: how long a queue pair waits for a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Exponent of the time after which a packet is sent again: 4.096 us times 2 to this, so 14 is 67 ms. Some devices take up to
    /// four times as long.
    pub timeout: u8,
    /// Number of repetitions, at most 6: 7 would mean forever.
    pub retries: u8,
}

impl Default for Timing {
    /// A lost packet costs 67 ms, and requests to a silent peer fail after 0.47 s.
    fn default() -> Self {
        Self { timeout: 14, retries: 6 }
    }
}

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of its region.
    pub key: u32,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads the peer's memory into the local pieces.
    Read,
    /// Writes the local pieces to the peer's memory.
    Write,
    /// Writes like [`Self::Write`], then gives the peer this number as a message. When the peer takes it, all writes that
    /// were posted to this queue pair before are in its memory.
    WriteAndTell(u32),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Number for its completion.
    pub id: u64,
    /// Operation.
    pub op: Op,
    /// Local pieces, in order.
    pub local: &'a [Sge],
    /// Address in the peer's memory.
    pub remote: u64,
    /// The peer's key.
    pub key: u32,
    /// Whether it completes with an entry in the queue even if it succeeds. The last one of a batch must, because only
    /// that frees the places of those before it.
    pub signaled: bool,
}

/// Why requests could not be posted.
#[derive(Debug, thiserror::Error)]
#[error("cannot post request {posted} of a batch: {source}")]
pub struct PostError {
    /// Number of requests that were posted; they go on.
    pub posted: usize,
    /// The system's error; [`io::ErrorKind::NotConnected`] after the queue pair was destroyed.
    pub source: io::Error,
}

/// A queue pair. It is destroyed at the latest when the value is dropped.
///
/// From the moment at which [`Self::destroy`] returns, no access under this queue pair touches memory, neither of its
/// own requests nor of the peer's.
pub struct QueuePair {
    /// `None` once it was destroyed. The lock orders posting and destroying: libibverbs lets a driver fail when they
    /// overlap.
    pair: Mutex<Option<NonNull<abi::ibv_qp>>>,
    address: Address,
    path: Path,
    capacity: Capacity,
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
}

// SAFETY: the pointer is only used under the lock.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair that is not connected. `first_packet` should be drawn at random, so that packets of an
    /// earlier connection are not mistaken for packets of this one.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        path: Path,
        capacity: Capacity,
        first_packet: u32,
    ) -> Result<Self, VerbsError> {
        let mut wanted = abi::ibv_qp_init_attr {
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            qp_type: abi::IBV_QPT_RC,
            ..Default::default()
        };
        wanted.cap.max_send_wr = capacity.requests;
        wanted.cap.max_recv_wr = capacity.messages.max(1);
        wanted.cap.max_send_sge = capacity.pieces;
        wanted.cap.max_recv_sge = 1;
        // SAFETY: a live domain and queue, which this value keeps.
        let pair = unsafe { (domain.device().verbs().ibv_create_qp)(domain.as_ptr(), &raw mut wanted) };
        let source = io::Error::last_os_error();
        let pair = NonNull::new(pair).ok_or_else(|| domain.device().failed("make a queue pair", source))?;
        let address = Address {
            // SAFETY: just made.
            pair: unsafe { pair.as_ref() }.qp_num,
            first_packet: first_packet & 0xff_ffff,
            lid: path.lid,
            gid: path.gid.bytes,
            mtu: path.mtu,
        };
        let made = Self {
            pair: Mutex::new(Some(pair)),
            address,
            path,
            capacity,
            domain: domain.clone(),
            queue: queue.clone(),
        };
        let mut to = abi::ibv_qp_attr {
            qp_state: abi::IBV_QPS_INIT,
            port_num: path.port,
            pkey_index: path.marks.pkey_index,
            ..Default::default()
        };
        if capacity.remote {
            to.qp_access_flags = abi::IBV_ACCESS_REMOTE_READ | abi::IBV_ACCESS_REMOTE_WRITE;
        }
        let named = abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
        made.modify("prepare a queue pair", &mut to, named)?;
        Ok(made)
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// The path that it goes through.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path
    }

    /// Address of this end, for the peer.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Connects it with the queue pair of a peer, which must do the same.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn connect(&self, peer: &Address, timing: Timing) -> Result<(), VerbsError> {
        let mut to = abi::ibv_qp_attr {
            qp_state: abi::IBV_QPS_RTR,
            path_mtu: mtu_number(peer.mtu.min(self.path.mtu)),
            dest_qp_num: peer.pair,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: self.capacity.reads_at_once,
            min_rnr_timer: NOT_READY_TIMER,
            ..Default::default()
        };
        to.ah_attr.port_num = self.path.port;
        to.ah_attr.dlid = peer.lid;
        to.ah_attr.sl = self.path.marks.service_level;
        if self.path.link == LinkLayer::Ethernet || peer.lid == 0 {
            to.ah_attr.is_global = 1;
            to.ah_attr.grh.dgid = abi::ibv_gid { raw: peer.gid };
            to.ah_attr.grh.sgid_index = self.path.gid.index;
            to.ah_attr.grh.hop_limit = HOPS;
            to.ah_attr.grh.traffic_class = self.path.marks.traffic_class;
        }
        let named = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        self.modify("connect a queue pair", &mut to, named)?;
        let mut to = abi::ibv_qp_attr {
            qp_state: abi::IBV_QPS_RTS,
            timeout: timing.timeout,
            retry_cnt: timing.retries,
            rnr_retry: NOT_READY_RETRIES,
            sq_psn: self.address.first_packet,
            max_rd_atomic: self.capacity.reads_at_once,
            ..Default::default()
        };
        let named = abi::IBV_QP_STATE
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("start a queue pair", &mut to, named)
    }

    fn modify(&self, step: &'static str, to: &mut abi::ibv_qp_attr, named: u32) -> Result<(), VerbsError> {
        let pair = self.pair.lock();
        let Some(pair) = *pair else {
            return Err(self.domain.device().failed(step, io::ErrorKind::NotConnected.into()));
        };
        // SAFETY: a live queue pair, and attributes that outlive the call.
        let done = unsafe { (self.domain.device().verbs().ibv_modify_qp)(pair.as_ptr(), to, named as i32) };
        self.domain.device().check(step, done)
    }

    /// Prepares for `count` more messages of the peer; each completes with the number `id`.
    ///
    /// # Errors
    /// [`PostError`].
    pub fn expect_messages(&self, id: u64, count: usize) -> Result<(), PostError> {
        let pair = self.pair.lock();
        let Some(pair) = *pair else { return Err(destroyed()) };
        for posted in 0..count {
            let mut request = abi::ibv_recv_wr { wr_id: id, ..Default::default() };
            let mut bad = std::ptr::null_mut();
            // SAFETY: a live queue pair, whose context has the operation; a request without pieces.
            let done = unsafe {
                let post = (*(*pair.as_ptr()).context).ops.post_recv;
                post.map_or(NO_OPERATION, |post| post(pair.as_ptr(), &raw mut request, &raw mut bad))
            };
            if done != 0 {
                return Err(PostError { posted, source: io::Error::from_raw_os_error(done.abs()) });
            }
        }
        Ok(())
    }

    /// Posts requests with one doorbell. Some drivers carry them out before this returns, so it may take as long as the
    /// transfer: call it where that may be.
    ///
    /// # Safety
    /// The local pieces must stay registered until the request has completed, or until the queue pair was destroyed.
    /// Meanwhile nothing else may access those of a read, and nothing may change those of a write.
    ///
    /// # Errors
    /// [`PostError`]. The requests before the one that failed go on.
    pub unsafe fn post(&self, works: &[Work<'_>]) -> Result<(), PostError> {
        let mut pieces: Vec<Vec<abi::ibv_sge>> = Vec::with_capacity(works.len());
        for work in works {
            let piece = |sge: &Sge| abi::ibv_sge { addr: sge.address, length: sge.len, lkey: sge.key };
            pieces.push(work.local.iter().map(piece).collect());
        }
        let mut requests: Vec<abi::ibv_send_wr> =
            works.iter().zip(&mut pieces).map(|(work, pieces)| request(work, pieces)).collect();
        // Built from the last request back, because each holds the address of the next one.
        let mut next = std::ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.next = next;
            next = request;
        }
        if next.is_null() {
            return Ok(());
        }
        let first = next;
        let pair = self.pair.lock();
        let Some(pair) = *pair else { return Err(destroyed()) };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, whose context has the operation, and a list of requests that outlives the call. The
        // caller answers for the memory that they name.
        let done = unsafe {
            let post = (*(*pair.as_ptr()).context).ops.post_send;
            post.map_or(NO_OPERATION, |post| post(pair.as_ptr(), first, &raw mut bad))
        };
        if done == 0 {
            return Ok(());
        }
        let posted = requests.iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0);
        Err(PostError { posted, source: io::Error::from_raw_os_error(done.abs()) })
    }

    /// Ends every access under this queue pair. Its requests that have not completed do not complete any more.
    ///
    /// # Errors
    /// [`VerbsError`]. Then accesses may go on, and its memory must not be used for anything else.
    pub fn destroy(&self) -> Result<(), VerbsError> {
        let mut pair = self.pair.lock();
        let Some(live) = *pair else { return Ok(()) };
        // SAFETY: live, and under the lock nobody else uses it.
        let mut done = unsafe { (self.domain.device().verbs().ibv_destroy_qp)(live.as_ptr()) };
        // The kernel returns this for a device that was removed, after it has ended all accesses of the device.
        if done.abs() == rustix::io::Errno::IO.raw_os_error() {
            done = 0;
        }
        self.domain.device().check("destroy a queue pair", done)?;
        *pair = None;
        Ok(())
    }
}

/// Error number of an operation that the driver lacks: "function not implemented".
const NO_OPERATION: i32 = 38;

fn destroyed() -> PostError {
    PostError { posted: 0, source: io::ErrorKind::NotConnected.into() }
}

fn request(work: &Work<'_>, pieces: &mut [abi::ibv_sge]) -> abi::ibv_send_wr {
    let mut request = abi::ibv_send_wr {
        wr_id: work.id,
        sg_list: pieces.as_mut_ptr(),
        num_sge: i32::try_from(pieces.len()).unwrap_or(i32::MAX),
        ..Default::default()
    };
    request.opcode = match work.op {
        Op::Read => abi::IBV_WR_RDMA_READ,
        Op::Write => abi::IBV_WR_RDMA_WRITE,
        Op::WriteAndTell(number) => {
            request.imm_data = number.to_be();
            abi::IBV_WR_RDMA_WRITE_WITH_IMM
        }
    };
    if work.signaled {
        request.send_flags = abi::IBV_SEND_SIGNALED;
    }
    request.wr.rdma.remote_addr = work.remote;
    request.wr.rdma.rkey = work.key;
    request
}

/// The number by which the verbs call a packet size: 1 is 256 bytes, 5 is 4096.
fn mtu_number(bytes: u32) -> u32 {
    (bytes.max(256).ilog2() - 7).clamp(1, 5)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::error!("{error}: what it has not completed may go on");
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.domain.device().name())
            .field("address", &self.address)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
