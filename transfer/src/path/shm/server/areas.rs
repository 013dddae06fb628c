//! Memory that clients of this host share, from which the store copies the bytes of their writes.
//!
//! The client names the place of the bytes, and the store copies them, under the pass of the write as it would receive them.
//! A client that changes them meanwhile, or gives others to the same place, damages nothing but its own write. The store maps
//! an area read-only, and only if it can't shrink: see [`crate::memory::mapping`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_types::Grant;
use parking_lot::Mutex;

use super::copies::{Copiers, Copies};
use crate::control::server::{Exchange, Refusal};
use crate::control::wire::AreaOp;
use crate::memory;
use crate::memory::Mapping;

/// Maximum number of areas of all clients, and of their bytes: a process can have 65,530 mappings, of 128 TiB.
const MOST: usize = 16_384;
const MOST_BYTES: u64 = 16 << 40;

/// Areas of all clients, by random numbers that the store draws, so that a client can't guess the number of another
/// client's area.
pub(crate) struct AreaTable {
    entries: Mutex<Entries>,
    /// Maximum bytes of one client.
    of_client: u64,
}

#[derive(Default)]
struct Entries {
    by_number: HashMap<u64, Arc<Mapping>>,
    bytes: u64,
}

/// The areas of one client, which end with it.
pub(crate) struct ClientAreas<'a> {
    all: &'a AreaTable,
    numbers: Vec<u64>,
    bytes: u64,
}

impl Default for AreaTable {
    /// A client can lend as much as the machine has, because areas have no holes. A client that hands over the same
    /// memory many times uses up page tables of the store, and room that other clients need.
    fn default() -> Self {
        let of_client = memory::of_machine().unwrap_or(MOST_BYTES).min(MOST_BYTES);
        Self { entries: Mutex::default(), of_client }
    }
}

impl AreaTable {
    pub(crate) fn of_client(&self) -> ClientAreas<'_> {
        ClientAreas { all: self, numbers: Vec::new(), bytes: 0 }
    }

    /// Finds the area of an operation and checks that the bytes lie inside it.
    fn find(&self, op: &AreaOp) -> Result<Arc<Mapping>, Refusal> {
        let area = self.entries.lock().by_number.get(&op.area).cloned();
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

impl ClientAreas<'_> {
    /// Adds an area and returns its number; `None` if there are too many.
    pub(crate) fn add(&mut self, area: Mapping) -> Option<u64> {
        let mut all = self.all.entries.lock();
        let bytes = all.bytes.saturating_add(area.len());
        let of_client = self.bytes.saturating_add(area.len());
        if all.by_number.len() >= MOST || bytes > MOST_BYTES || of_client > self.all.of_client {
            return None;
        }
        (all.bytes, self.bytes) = (bytes, of_client);
        // 0 is the answer that says no.
        let number = rand::random_range(1..=u64::MAX);
        all.by_number.insert(number, Arc::new(area));
        self.numbers.push(number);
        Some(number)
    }

    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(at) = self.numbers.iter().position(|there| *there == number) {
            self.numbers.swap_remove(at);
            self.forget(vec![number]);
        }
    }

    fn forget(&mut self, numbers: Vec<u64>) {
        let mut all = self.all.entries.lock();
        let areas: Vec<_> = numbers.iter().filter_map(|number| all.by_number.remove(number)).collect();
        let bytes = areas.iter().map(|area| area.len()).sum::<u64>();
        (all.bytes, self.bytes) = (all.bytes - bytes, self.bytes - bytes);
        drop(all);
        if areas.is_empty() {
            return;
        }
        // To unmap gigabytes takes a while.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(areas))),
            Err(_) => drop(areas),
        }
    }
}

impl Drop for ClientAreas<'_> {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        self.forget(numbers);
    }
}

/// Copies writes out of areas. Each piece is copied under the pass of its write.
pub(super) async fn write(
    exchange: &mut Exchange<'_>,
    (table, copiers): (&AreaTable, &Copiers),
    grant: &Grant,
    ops: &[u8],
    seal: bool,
) {
    let areas: Result<Vec<_>, _> = AreaOp::decode_all(ops).map(|op| table.find(&op)).collect();
    let areas = match areas {
        Ok(areas) => areas,
        Err(refusal) => return exchange.refuse_all(AreaOp::decode_all(ops).count(), &refusal),
    };
    let mut writes = exchange.admit_all(grant, AreaOp::decode_all(ops).map(|op| op.op)).await;
    let copies = Copies::of(writes.iter().zip(AreaOp::decode_all(ops)).zip(areas));
    copiers.run(&copies).await;
    for (write, copied) in writes.iter_mut().filter_map(|write| write.as_mut().ok()).zip(&copies.writes) {
        write.lost = copied.lost.load(Ordering::Relaxed);
    }
    let bytes = &exchange.served.counters.shm_bytes_written;
    let ops = AreaOp::decode_all(ops).map(|op| op.op);
    exchange.end_writes(seal.then_some(grant), ops, writes, bytes).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::Op;
    use crate::memory::{Protection, memory_file};

    fn mapping(len: u64) -> Mapping {
        Mapping::new(memory_file("test", len).unwrap(), len, Protection::Read).unwrap()
    }

    #[test]
    fn an_area_is_found_by_its_number_while_its_client_has_it() {
        let areas = AreaTable::default();
        let find = |area, at, len| areas.find(&AreaOp { op: Op { range: 0, offset: 0, len }, area, at });
        let mut client = areas.of_client();
        let (one, two) = (client.add(mapping(100)).unwrap(), client.add(mapping(200)).unwrap());
        assert!(find(one, 100, 0).is_ok() && find(two, 0, 200).is_ok());
        assert!(find(one, 1, 100).is_err() && find(one, u64::MAX, 2).is_err() && find(0, 0, 1).is_err());
        client.remove(one);
        areas.of_client().remove(two);
        assert!(find(one, 0, 1).is_err() && find(two, 0, 1).is_ok(), "another client can't end it");
        drop(client);
        assert!(find(two, 0, 1).is_err());
        assert_eq!(areas.entries.lock().bytes, 0);
    }

    #[test]
    fn a_client_hands_over_no_more_than_its_share() {
        let areas = AreaTable { of_client: 250, ..AreaTable::default() };
        let (mut one, mut other) = (areas.of_client(), areas.of_client());
        let number = one.add(mapping(200)).unwrap();
        assert!(one.add(mapping(51)).is_none());
        assert!(one.add(mapping(50)).is_some() && other.add(mapping(250)).is_some());
        one.remove(number);
        assert!(one.add(mapping(200)).is_some() && one.add(mapping(1)).is_none());
    }

    #[test]
    fn what_clients_hand_over_is_bounded() {
        let areas = AreaTable { of_client: u64::MAX, ..AreaTable::default() };
        let (mut one, mut other) = (areas.of_client(), areas.of_client());
        areas.entries.lock().bytes = MOST_BYTES - 100;
        assert!(one.add(mapping(101)).is_none());
        let number = one.add(mapping(100)).unwrap();
        assert!(other.add(mapping(1)).is_none());
        one.remove(number);
        assert!(other.add(mapping(1)).is_some());
    }
}
