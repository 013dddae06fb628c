//! Ledger of acknowledged puts, to detect any that gets lost.

use std::collections::HashSet;
use std::sync::Arc;

use mc_client::{PinAction, PutOptions};
use parking_lot::Mutex;

use super::{Block, value};

/// Keys of one run, and sizes and pin of their values. The run's name keeps the keys of two runs in one pool apart.
#[derive(Clone, Debug)]
pub struct Keyspace {
    run: String,
    /// Bytes of every value; `None` selects the mix of [`value::mixed_size`].
    size: Option<usize>,
    pin: PinAction,
}

impl Keyspace {
    /// Creates keys with the mixed value sizes of the playground.
    pub fn mixed(run: String) -> Self {
        Self { run, size: None, pin: PinAction::default() }
    }

    /// Creates keys whose values all have one size.
    pub fn uniform(run: String, size: usize) -> Self {
        Self { run, size: Some(size), pin: PinAction::default() }
    }

    /// Pins every value, so that the pool may not evict it.
    pub fn hard_pinned(self) -> Self {
        Self { pin: PinAction::Hard, ..self }
    }

    /// Returns the options of a put.
    pub fn put_options(&self) -> PutOptions {
        PutOptions::default().with_pin(self.pin)
    }

    /// Returns the block's key.
    pub fn key(&self, block: Block) -> String {
        format!("{}/{block}", self.run)
    }

    /// Returns the size of the block's value in bytes.
    pub fn size(&self, block: Block) -> usize {
        self.size.unwrap_or_else(|| value::mixed_size(self.key(block).as_bytes()))
    }

    /// Returns the block's key and value.
    pub fn object(&self, block: Block) -> (String, bytes::Bytes) {
        let key = self.key(block);
        let value = value::of(key.as_bytes(), self.size(block));
        (key, value)
    }

    /// Returns whether `got` is the block's value.
    pub fn is_right(&self, block: Block, got: &[u8]) -> bool {
        value::is_right(self.key(block).as_bytes(), self.size(block), got)
    }

    /// Cuts blocks into batches for one call each, bounded in items and bytes, with at least one block each.
    pub fn batches(&self, blocks: &[Block]) -> Vec<Vec<Block>> {
        const MOST_ITEMS: usize = 64;
        const MOST_BYTES: usize = 16 << 20;
        let mut batches = Vec::new();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for block in blocks {
            let size = self.size(*block);
            if !batch.is_empty() && (batch.len() == MOST_ITEMS || bytes + size > MOST_BYTES) {
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
            batch.push(*block);
            bytes += size;
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }
}

/// Every block whose put was acknowledged, in the order of the acknowledgements. Clones share it.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Keys and values of the blocks.
    pub keys: Keyspace,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    order: Vec<Block>,
    known: HashSet<Block>,
    bytes: u64,
    /// Number of blocks in `order` that were acknowledged before the leader was killed.
    old: usize,
}

impl Ledger {
    /// Without any block.
    pub fn new(keys: Keyspace) -> Self {
        Self { keys, inner: Arc::default() }
    }

    /// Records that the put of `block` was acknowledged; repeating it changes nothing.
    pub fn acknowledge(&self, block: Block) {
        let bytes = self.keys.size(block) as u64;
        let mut inner = self.inner.lock();
        if inner.known.insert(block) {
            inner.order.push(block);
            inner.bytes += bytes;
        }
    }

    /// Returns the number of acknowledged puts; each key counts once.
    pub fn acknowledged(&self) -> u64 {
        self.inner.lock().order.len() as u64
    }

    /// Returns those of `blocks` whose put was not acknowledged.
    pub fn missing(&self, blocks: &[Block]) -> Vec<Block> {
        let inner = self.inner.lock();
        blocks.iter().copied().filter(|block| !inner.known.contains(block)).collect()
    }

    /// Returns the bytes of the acknowledged puts.
    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Marks all puts acknowledged so far as old; returns their number.
    pub fn draw_line(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.old = inner.order.len();
        inner.old as u64
    }

    /// Returns the `n`th old block, wrapping around; `None` while there is none.
    pub fn old(&self, n: usize) -> Option<Block> {
        let inner = self.inner.lock();
        inner.order.get(n.checked_rem(inner.old)?).copied()
    }

    /// Returns all acknowledged blocks, the old ones first in the pair.
    pub fn all(&self) -> (Vec<Block>, Vec<Block>) {
        let inner = self.inner.lock();
        let (old, new) = inner.order.split_at(inner.old);
        (old.to_vec(), new.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_key_counts_once_and_is_old_after_the_line() {
        let ledger = Ledger::new(Keyspace::uniform("t".into(), 10));
        assert_eq!(ledger.old(0), None);
        for block in [5, 6, 5] {
            ledger.acknowledge(block);
        }
        assert_eq!((ledger.acknowledged(), ledger.bytes()), (2, 20));
        assert_eq!(ledger.missing(&[5, 8, 6]), [8]);
        assert_eq!(ledger.draw_line(), 2);
        ledger.acknowledge(7);
        assert_eq!(ledger.all(), (vec![5, 6], vec![7]));
        assert_eq!([ledger.old(0), ledger.old(1), ledger.old(2)], [Some(5), Some(6), Some(5)]);
    }

    #[test]
    fn batches_keep_the_order_and_both_bounds() {
        let blocks: Vec<Block> = (0..150).collect();
        let small = Keyspace::uniform("t".into(), 1).batches(&blocks);
        assert_eq!(small.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 22]);
        assert_eq!(small.concat(), blocks);
        let huge = Keyspace::uniform("t".into(), 20 << 20).batches(&blocks[..3]);
        assert_eq!(huge, [[0], [1], [2]], "an object larger than the bound still travels");
        assert!(Keyspace::mixed("t".into()).batches(&[]).is_empty());
    }
}
