//! Memory that clients of this host share, from which the store copies the bytes of their writes.
//!
//! The client names the place of the bytes, and the store copies them, under the pass of the write as it would receive them.
//! A client that changes them meanwhile, or gives others to the same place, damages nothing but its own write. The store maps
//! an area read-only, and only if it can't shrink: see [`crate::mapping`].

use std::collections::HashMap;
use std::sync::Arc;

use mc_types::Grant;
use parking_lot::Mutex;

use super::check::Refusal;
use super::connection::Connection;
use super::socket::RECV_CHUNK;
use crate::fence::Fenced;
use crate::mapping::Mapping;
use crate::wire::AreaOp;

/// Maximum number of areas of one client.
const MOST: usize = 1024;
/// Bytes after which a request that is copied yields to other connections.
const TURN: u64 = 1 << 20;

/// The areas of all clients, by the number that the store has drawn. So nobody finds another client's by counting.
#[derive(Default)]
pub(super) struct Areas(Mutex<HashMap<u64, Arc<Mapping>>>);

/// The areas of one client, which end with it.
pub(super) struct AreasOfOne<'a> {
    all: &'a Areas,
    numbers: Vec<u64>,
}

impl Areas {
    pub(super) fn of_one(&self) -> AreasOfOne<'_> {
        AreasOfOne { all: self, numbers: Vec::new() }
    }

    /// Finds the bytes of an operation.
    fn find(&self, op: &AreaOp) -> Result<Arc<Mapping>, Refusal> {
        let area = self.0.lock().get(&op.area).cloned();
        let area = area.ok_or_else(|| Refusal::OtherWay("this store has no such memory".to_owned()))?;
        match area.contains(op.at, op.op.len) {
            true => Ok(area),
            false => Err(Refusal::OtherWay(format!(
                "{} bytes at {} are not inside the {} bytes of the memory",
                op.op.len,
                op.at,
                area.len()
            ))),
        }
    }
}

impl AreasOfOne<'_> {
    /// Adds an area and returns its number; `None` if there are too many.
    pub(super) fn add(&mut self, area: Mapping) -> Option<u64> {
        if self.numbers.len() >= MOST {
            return None;
        }
        // 0 is the answer that says no.
        let number = rand::random_range(1..=u64::MAX);
        self.all.0.lock().insert(number, Arc::new(area));
        self.numbers.push(number);
        Some(number)
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(at) = self.numbers.iter().position(|there| *there == number) {
            self.numbers.swap_remove(at);
            self.all.0.lock().remove(&number);
        }
    }
}

impl Drop for AreasOfOne<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let mapped: Vec<_> = self.numbers.iter().filter_map(|number| all.remove(number)).collect();
        drop(all);
        // Takes a while for gigabytes.
        drop(mapped);
    }
}

impl Connection<'_> {
    /// Copies writes out of areas. Each piece is copied under the pass of its write.
    pub(super) async fn area_writes(&mut self, grant: &Grant, ops: &[u8], seal: bool) {
        let server = self.server;
        let areas: Result<Vec<_>, _> = AreaOp::decode_all(ops).map(|op| server.areas.find(&op)).collect();
        let areas = match areas {
            Ok(areas) => areas,
            Err(refusal) => return self.refuse_all(AreaOp::decode_all(ops).count(), &refusal),
        };
        let mut writes = self.admit_all(grant, AreaOp::decode_all(ops).map(|op| op.op)).await;
        let mut since_turn = 0;
        for ((write, op), area) in writes.iter_mut().zip(AreaOp::decode_all(ops)).zip(areas) {
            let Ok(incoming) = write else { continue };
            let mut done = 0;
            while done < incoming.len {
                let Some(held) = incoming.pass.hold() else {
                    *write = Err(Fenced::Ended { index: incoming.range.index }.into());
                    break;
                };
                let len = RECV_CHUNK.min(incoming.len - done);
                incoming.lent.segment.copy_in(incoming.offset + done, &area, op.at + done, len);
                drop(held);
                done += len;
                since_turn += len;
                if since_turn >= TURN {
                    since_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
        let ranges = AreaOp::decode_all(ops).map(|op| op.op.range);
        self.end_writes(grant, ranges, writes, seal, &server.counters.shm_bytes_written).await;
    }
}
