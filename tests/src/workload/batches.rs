use mc_client::{Bytes, GetInto, GetIntoOwned, GotOwned, PutMode, RegisteredMemory};

use super::judged::{Judged, action, key_name};
use crate::Seeded;
use crate::checker::Action;

/// Keys of a batch.
const KEYS: std::ops::Range<u64> = 2..65;

impl Judged {
    /// Puts, gets, looks for or removes many keys in one call. A key may come twice.
    pub(super) async fn batch(&self, random: &mut Seeded) {
        let count = random.skewed(KEYS);
        let keys: Vec<u64> = (0..count).map(|_| random.below(self.workload.keys)).collect();
        let names: Vec<String> = keys.iter().map(|key| key_name(*key)).collect();
        let all = |action| names.iter().map(|name| (self.name(name), action)).collect();
        match random.below(10) {
            0..4 => self.batch_put(&keys, random).await,
            4 => self.batch_get_into(&keys, random).await,
            5 => self.batch_get_into_owned(&keys, random).await,
            6..8 => {
                let call = self.call(all(Action::Get));
                let got = self.client.batch_get(&names).await;
                call.answered(got, |call, got| call.got(got));
            }
            8 => {
                let call = self.call(all(Action::Exist));
                let found = self.client.batch_peek(&names).await;
                call.answered(found, |call, found| call.found(found));
            }
            _ => {
                let call = self.call(all(Action::Remove));
                let removed = self.client.batch_remove(&names, true).await;
                call.answered(removed, |call, removed| call.removed(removed));
            }
        }
    }

    async fn batch_put(&self, keys: &[u64], random: &mut Seeded) {
        let options = self.workload.options([PutMode::IfAbsent, PutMode::Upsert][random.below(2) as usize]);
        let (mut items, mut asked) = (Vec::new(), Vec::new());
        for key in keys {
            let name = key_name(*key);
            let (value, digest) = self.puts.begin(&self.name(&name), self.workload.len(*key, random));
            asked.push((self.name(&name), action(&options, digest)));
            items.push((name, value));
        }
        let call = self.call(asked);
        let puts = self.client.batch_put(&items, &options).await;
        call.answered(puts, |call, put| call.put(put));
    }

    /// Reads objects into the caller's memory: two pieces for each, which are long enough for any value of its key.
    async fn batch_get_into(&self, keys: &[u64], random: &mut Seeded) {
        let names: Vec<String> = keys.iter().map(|key| key_name(*key)).collect();
        let mut memory: Vec<_> =
            keys.iter().map(|key| vec![0; self.workload.longest(*key) as usize]).collect();
        let into = names.iter().zip(&mut memory).map(|(name, memory)| {
            let middle = random.below(memory.len() as u64) as usize;
            let (first, rest) = memory.split_at_mut(middle);
            GetInto::new(name, vec![first, rest])
        });
        let mut items: Vec<_> = into.collect();
        let call = self.call(names.iter().map(|name| (self.name(name), Action::Get)).collect());
        let read = self.client.batch_get_into(&mut items).await;
        call.answered(read.into_iter().zip(memory), |call, (read, mut memory)| {
            let value = |len| {
                memory.truncate(len);
                Bytes::from(memory)
            };
            call.got(read.map(|len| len.map(value)))
        });
    }

    /// Reads objects into memory that comes back with the results: two parts of an allocation for each.
    async fn batch_get_into_owned(&self, keys: &[u64], random: &mut Seeded) {
        let names: Vec<String> = keys.iter().map(|key| key_name(*key)).collect();
        let items = keys.iter().zip(&names).map(|(key, name)| {
            let longest = self.workload.longest(*key);
            let mut first = self.client.allocate(longest as usize).expect("memory for an object");
            let rest = first.split_off(random.below(longest) as usize);
            GetIntoOwned::new(name.clone(), vec![first, rest])
        });
        let items = items.collect();
        let call = self.call(names.iter().map(|name| (self.name(name), Action::Get)).collect());
        let read = self.client.batch_get_into_owned(items).await;
        call.answered(read, |call, GotOwned { read, into, .. }| {
            let bytes = || into.iter().flat_map(RegisteredMemory::as_slice).copied();
            call.got(read.map(|len| len.map(|len| bytes().take(len).collect())))
        });
    }
}
