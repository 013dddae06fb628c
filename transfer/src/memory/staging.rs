//! Staging memory of a client, which a store's card reads and writes.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_types::Access;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::exposed::{Exposable, Exposed};
use super::mapping::{Mapping, Protection, memory_file};
use super::rdma_devices::{Devices, NoRdma};
use super::read_buffer::ReadBuffer;
use super::write_buffer::WriteBuffer;
use crate::blocking_drop::drop_blocking;
use crate::checksum::RunningChecksum;

/// Bytes of a block. A request takes as many blocks as its bytes need.
const BLOCK: u64 = 256 << 10;
/// Blocks that are allocated and registered together: 16 MiB.
const CHUNK_BLOCKS: u64 = 64;
/// Maximum number of blocks: 128 MiB.
const BLOCKS: usize = 512;
/// Maximum bytes of all blocks.
pub(super) const MOST_BYTES: u64 = BLOCKS as u64 * BLOCK;
/// Time after which memory that could not be registered is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// The blocks of a process, which grow when all are taken.
pub(super) struct Pool {
    free: Mutex<Vec<Block>>,
    /// Why the last chunk could not be registered, and when that is tried again.
    failed: Mutex<Option<(Instant, NoRdma)>>,
    permits: Arc<Semaphore>,
}

/// Part of a registered chunk, whose bytes only the owner of this value uses.
struct Block {
    chunk: Arc<Chunk>,
    base: NonNull<u8>,
}

/// Memory that is registered as one.
struct Chunk {
    exposed: Exposed,
    /// Set when a request in it did not end well. The chunk is then not used again, and its remote key is revoked with
    /// the last request in it: a store may still send packets that carry the key.
    retired: AtomicBool,
}

// SAFETY: an address in a chunk that the value keeps, used by whoever has the value alone.
unsafe impl Send for Block {}
// SAFETY: `&Block` gives nothing but its address and keys.
unsafe impl Sync for Block {}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            failed: Mutex::default(),
            permits: Arc::new(Semaphore::new(BLOCKS)),
        })
    }

    /// Bytes of the blocks that no request uses.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.lock().len() as u64 * BLOCK
    }

    /// Takes blocks for which the caller has permits; `None` if there are too few.
    fn take(&self, count: usize) -> Option<Vec<Block>> {
        let mut free = self.free.lock();
        let retired: Vec<Block> =
            free.extract_if(.., |block| block.chunk.retired.load(Ordering::Relaxed)).collect();
        let from = free.len().checked_sub(count);
        let taken = from.map(|from| free.drain(from..).collect());
        drop(free);
        if !retired.is_empty() {
            // The last block of a chunk ends its registration.
            drop_blocking(retired);
        }
        taken
    }

    /// Adds a chunk, unless there are `count` blocks by now, or that has failed a moment ago: it costs milliseconds, and the limit
    /// that it met stays for longer. It registers memory, so call it off the runtime.
    fn grow(&self, devices: &Devices, count: usize) -> Result<(), NoRdma> {
        // One call grows the pool at a time.
        let mut failed = self.failed.lock();
        if self.free.lock().len() >= count {
            return Ok(());
        }
        if let Some((until, why)) = &*failed
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        *failed = None;
        let mut blocks = Vec::new();
        grow(devices, &mut blocks).inspect_err(|why| {
            tracing::warn!("bytes go over TCP instead of RDMA: {why}");
            *failed = Some((Instant::now() + AGAIN, why.clone()));
        })?;
        self.free.lock().append(&mut blocks);
        Ok(())
    }

    /// Why memory can't be registered at present.
    pub(super) fn why_not(&self) -> Option<NoRdma> {
        // The lock is held while the pool grows, which takes long and does not mean that growing fails.
        let failed = self.failed.try_lock()?;
        failed.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, why)| why.clone())
    }
}

/// Adds the blocks of a new chunk.
fn grow(devices: &Devices, free: &mut Vec<Block>) -> Result<(), NoRdma> {
    let failed = |error: &dyn std::fmt::Display| NoRdma(format!("cannot allocate buffers for RDMA: {error}"));
    // Shared, because a private mapping would be copied on write after a fork, and the card would go on with the old pages.
    let file = memory_file("mc-rdma", BLOCK * CHUNK_BLOCKS).map_err(|(_, error)| failed(&error))?;
    let memory =
        Mapping::new(&file, BLOCK * CHUNK_BLOCKS, Protection::Write).map_err(|error| failed(&error))?;
    let (base, memory) = (memory.base(), Arc::new(memory));
    let exposed =
        Exposed::new(devices, &Exposable::Shared(&memory), Access::Read).map_err(|error| failed(&error))?;
    let chunk = Arc::new(Chunk { exposed, retired: AtomicBool::new(false) });
    free.extend((0..CHUNK_BLOCKS).map(|nth| {
        // SAFETY: inside the chunk.
        let base = unsafe { base.add((nth * BLOCK) as usize) };
        Block { chunk: chunk.clone(), base }
    }));
    Ok(())
}

/// Blocks that a request has for itself, until they are dropped.
pub(crate) struct Staging {
    blocks: Vec<Block>,
    pool: Arc<Pool>,
    permits: Option<OwnedSemaphorePermit>,
}

impl Staging {
    /// Takes blocks for `len` bytes. Waits for those of other requests.
    pub(super) async fn take(pool: &Arc<Pool>, devices: &Arc<Devices>, len: u64) -> Result<Self, NoRdma> {
        let pool = pool.clone();
        let count = len.div_ceil(BLOCK);
        if count == 0 {
            return Ok(Self { blocks: Vec::new(), pool, permits: None });
        }
        let permits = u32::try_from(count).ok().filter(|count| *count as usize <= BLOCKS);
        let permits = permits.ok_or_else(|| NoRdma(format!("a request of {len} bytes is too long")))?;
        let permits = pool.permits.clone().acquire_many_owned(permits).await;
        let permits = permits.map_err(|error| NoRdma(error.to_string()))?;
        let count = count as usize;
        loop {
            if let Some(blocks) = pool.take(count) {
                return Ok(Self { blocks, pool, permits: Some(permits) });
            }
            // Each turn adds blocks or fails. Those that others take meanwhile come back with their permits.
            if let Some(why) = pool.why_not() {
                return Err(why);
            }
            let (growing, devices) = (pool.clone(), devices.clone());
            let grown = tokio::task::spawn_blocking(move || growing.grow(&devices, count)).await;
            grown.map_err(|failed| NoRdma(failed.to_string()))??;
        }
    }

    /// Cuts `len` bytes from `at` on at the ends of the blocks: (offset from `at`, length, key, address) of each part. No
    /// bytes are one part. The key is that of `device`.
    pub(crate) fn parts(
        &self,
        device: usize,
        at: u64,
        len: u64,
    ) -> impl Iterator<Item = (u64, u64, u32, u64)> {
        let mut done = 0;
        let mut first = true;
        std::iter::from_fn(move || {
            if done == len && !first {
                return None;
            }
            first = false;
            let (block, within) = (((at + done) / BLOCK) as usize, (at + done) % BLOCK);
            let part = (BLOCK - within).min(len - done);
            let place = self.blocks.get(block).map_or((0, 0), |block| {
                let key = block.chunk.exposed.key(device, 0).unwrap_or(0);
                (key, block.base.as_ptr() as u64 + within)
            });
            done += part;
            Some((done - part, part, place.0, place.1))
        })
    }

    /// Copies bytes in at `at`, and adds the copy to a checksum.
    pub(crate) fn put(&mut self, mut at: u64, mut bytes: WriteBuffer<'_>, sum: &mut RunningChecksum) {
        while !bytes.is_empty() {
            let (there, len) = self.place(at, bytes.len());
            let (now, later) = bytes.split_at(len);
            // SAFETY: `len` bytes of a block that is ours. The store's card reads them only once it was asked to.
            unsafe {
                now.copy_to(there);
                sum.update(std::slice::from_raw_parts(there, len));
            }
            (at, bytes) = (at + len as u64, later);
        }
    }

    /// Copies bytes out from `at` on.
    pub(crate) fn get(&self, mut at: u64, into: &mut ReadBuffer<'_>) {
        let mut left = into.reborrow();
        while !left.is_empty() {
            let (there, len) = self.place(at, left.len());
            let (mut now, later) = left.split_at(len);
            // SAFETY: `len` bytes of a block that is ours. The store's card has written them and told so.
            unsafe { libc::memcpy(now.as_mut_ptr().cast(), there.cast(), len) };
            (at, left) = (at + len as u64, later);
        }
    }

    /// Address of the byte at `at`, and the number of bytes that follow in its block, at most `len`.
    ///
    /// # Panics
    /// When `at` is past the end of the buffers.
    fn place(&self, at: u64, len: usize) -> (*mut u8, usize) {
        let (block, within) = ((at / BLOCK) as usize, (at % BLOCK) as usize);
        // SAFETY: `within` is inside the block.
        let there = unsafe { self.blocks[block].base.add(within) };
        (there.as_ptr(), len.min(BLOCK as usize - within))
    }

    /// Whether all of it is registered with `device`.
    pub(crate) fn is_registered(&self, device: usize) -> bool {
        self.blocks.iter().all(|block| block.chunk.exposed.key(device, 0).is_some())
    }

    /// Keeps others from using it after a request that did not end well: the store may still have packets with its key.
    pub(crate) fn retire(&self) {
        self.blocks.iter().for_each(|block| block.chunk.retired.store(true, Ordering::Relaxed));
    }

    /// Gives it up for ever: a device may still use it.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.blocks));
        if let Some(permits) = self.permits.take() {
            permits.forget();
        }
    }

    /// Registers a chunk, and returns its bytes.
    pub(super) fn try_one(devices: &Devices) -> Result<u64, NoRdma> {
        grow(devices, &mut Vec::new())?;
        Ok(CHUNK_BLOCKS * BLOCK)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Before the permits: whoever gets those finds the blocks.
        self.pool.free.lock().append(&mut self.blocks);
    }
}
