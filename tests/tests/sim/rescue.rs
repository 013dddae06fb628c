//! The rescue of a cluster whose majority is gone, and what the rescued one must have: all that the survivor's log has, and
//! so every acknowledged put but those that the survivor never received.

use std::collections::BTreeMap;
use std::time::Duration;

use mc_proto::v1;
use mc_tests::Seeded;
use mc_tests::checker::Digest;
use mc_types::{Code, PutId};
use tokio::time::sleep;

use crate::caller::{Caller, caller};
use crate::client::{CLIENTS, Client, Wanted};
use crate::invariants::{Invariants, views};
use crate::keys::{digest_of, may_be_evicted, tenant_of};
use crate::net::Host;
use crate::operator::{PATIENCE, add_surely};
use crate::oracle::Oracle;
use crate::pool::Pool;
use crate::replay::Replay;
use crate::schedule::{Schedule, TO_CONVERGE};
use crate::store::STORES;
use crate::user;
use crate::written::last_on;

/// With nothing in the way, so long until a member is added, until the stores have gone over and every key is answered, and
/// until all is read. Milliseconds.
const TO_ADD: u64 = 70_000;
const TO_ANSWER: u64 = 30_000;
/// Number of the client that writes until the majority is lost: on the host of a program that has ended.
const WRITER: usize = CLIENTS + STORES;
/// Between two looks at what is not there yet.
const AGAIN: Duration = Duration::from_millis(50);

/// The objects that a cluster must have, by key.
type Objects = BTreeMap<String, Option<(PutId, Digest)>>;

/// The index that follows from the log of the survivor.
struct Expected {
    objects: Objects,
    /// Number of objects, including those that were removed with others or whose stores were dropped, until they are swept.
    count: u64,
    /// The end of the log.
    last: mc_log::LogId,
}

impl Schedule {
    /// The majority of a healthy cluster is lost while clients write, and the survivor is rescued.
    pub(crate) fn rescue(&mut self, mut rng: Seeded) -> Result<(), String> {
        let masters = self.machines.len();
        let hosts: Vec<Host> = (0..masters).collect();
        let survivor = rng.below(masters as u64) as usize;
        let lost: Vec<_> = hosts.iter().copied().filter(|host| *host != survivor).collect();
        let acknowledged = self.oracle.kept();
        self.write_on(&mut rng, survivor, &lost)?;
        for host in hosts {
            if host == survivor && rng.below(2) == 0 {
                self.machines[host].lose_power();
            } else {
                self.machines[host].kill();
            }
        }
        lost.iter().for_each(|host| self.machines[*host].wipe());

        let Expected { objects, count, last } = self.expected(survivor, &acknowledged)?;
        let found = self.machines[survivor].rescue()?;
        if found != (count, last.index) {
            return Err(format!(
                "the rescue found {} objects up to {}: {count} up to {last} are right",
                found.0, found.1
            ));
        }
        let there = objects.values().flatten().count();
        let mut base = last;
        base.index += mc_index::RESCUE_GAP;
        self.invariants = Invariants::behind(base, masters, self.trace.clone(), self.entries.clone());
        self.nemesis.members = [survivor].into();
        self.machines[survivor].start();
        self.wait(TO_CONVERGE, "the rescued master does not lead", Self::converged)?;

        // With one more the most masters of the stores' lists are of the new cluster, so that the stores go over.
        let newcomer = lost[0];
        self.nemesis.members.insert(newcomer);
        self.machines[newcomer].start();
        let caller = self.caller(&mut rng);
        let added = self.outside.spawn(add_surely(caller, newcomer));
        self.wait(TO_ADD, "another master is not taken in", |this| added.is_finished() && this.converged())?;

        let caller = self.caller(&mut rng);
        let verified = self.outside.spawn(verify(caller, objects.clone()));
        self.wait(TO_ANSWER, "not every key is answered after the rescue", |_| verified.is_finished())?;
        self.outside.block_on(verified).map_err(|err| err.to_string())??;
        self.rescued += there;
        let user = (masters + CLIENTS + STORES, self.net.clone());
        let read = self.outside.spawn(user::read_after_rescue(user, masters, objects));
        self.wait(TO_ANSWER, "not every value is read after the rescue", |_| read.is_finished())?;
        self.read_after_rescue += self.outside.block_on(read).map_err(|err| err.to_string())??;
        Ok(())
    }

    /// Lets a client write for a while. In half of all cases the survivor hears nothing of it.
    fn write_on(&mut self, rng: &mut Seeded, survivor: Host, lost: &[Host]) -> Result<(), String> {
        let lags = rng.below(2) == 0;
        for host in lost.iter().filter(|_| lags) {
            self.net.set_cut(*host, survivor, true);
            self.net.set_cut(survivor, *host, true);
        }
        let oracle = Oracle::new(self.trace.clone(), Pool::Roomy);
        self.oracle.grant_keys().into_iter().for_each(|(store, key)| oracle.note_grant_key(store, key));
        let wanted = self.nemesis.wanted.clone();
        *wanted.lock() = Wanted::Writes;
        let client = {
            let _inside = self.outside.enter();
            let part = rng.part(1);
            let client =
                Client::new(WRITER, self.net.clone(), self.machines.len(), oracle.clone(), Pool::Roomy, part);
            tokio::spawn(client.run(wanted))
        };
        let until = self.now + 300 + rng.below(1_500);
        while self.now < until {
            oracle.set_now(self.now);
            self.step(false)?;
        }
        client.abort();
        for host in lost.iter().filter(|_| lags) {
            self.net.set_cut(*host, survivor, false);
            self.net.set_cut(survivor, *host, false);
        }
        oracle.violation().map_or(Ok(()), Err)
    }

    /// Makes the index from the log of the survivor, entry by entry from the beginning.
    fn expected(&self, survivor: Host, acknowledged: &[(String, Digest)]) -> Result<Expected, String> {
        let last = last_on(&self.machines[survivor].log.disk()).map_err(|err| err.to_string())?;
        let last = last.ok_or("the survivor has no log")?;
        let mut replay = Replay::new();
        for entry in self.entries.chain(None, last)? {
            replay.apply(&entry);
        }
        let of = |(_, key, object): (&str, &[u8], Option<mc_index::ObjectView>)| {
            let key = String::from_utf8_lossy(key).into_owned();
            let value = object.map(|it| (it.version, digest_of(&key, it.version, it.checksum)));
            (key, value)
        };
        let objects: Objects = replay.objects().map(of).collect();
        // All had applied these when the cluster was well.
        let is_gone = |(key, value): &&(String, Digest)| {
            objects.get(key).and_then(Option::as_ref).is_none_or(|(_, digest)| digest != value)
        };
        match acknowledged.iter().find(is_gone) {
            Some((key, value)) => Err(format!("the survivor's log has lost {value:?} of {key}")),
            None => Ok(Expected { objects, count: replay.state().objects(), last }),
        }
    }

    fn caller(&self, rng: &mut Seeded) -> Caller {
        let _inside = self.outside.enter();
        let masters = self.machines.len();
        Caller::new(&self.net.of(masters + CLIENTS), masters, PATIENCE, rng.part(2))
    }

    /// Steps until something is done.
    fn wait(&mut self, most: u64, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let began = self.now;
        while !done(self) {
            self.step(false)?;
            if self.now - began > most {
                return Err(format!("{what} within {most} ms{}", views(&self.machines)));
            }
        }
        Ok(())
    }
}

/// Asks for every key until it is answered, and compares the answers.
async fn verify(mut masters: Caller, objects: Objects) -> Result<(), String> {
    for (key, expected) in objects {
        let found = loop {
            let request = v1::BatchGetRequest {
                caller: caller(),
                tenant: tenant_of(&key).into(),
                keys: vec![bytes::Bytes::copy_from_slice(key.as_bytes())],
                reads_doubtful: true,
                ..Default::default()
            };
            let answer = masters.attempt(async |mut master| master.batch_get(request).await).await;
            let result = answer.ok().and_then(|reply| reply.results.into_iter().next());
            match result.as_ref().map(|result| Code::try_from(result.code)) {
                Some(Ok(Code::Ok)) => break result.and_then(|result| PutId::from_bytes(&result.version)),
                Some(Ok(Code::ObjectNotFound)) => break None,
                _ => sleep(AGAIN).await,
            }
        };
        let right = expected.map(|(version, _)| version);
        // The rescued leader goes on with evictions.
        let evicted = found.is_none() && may_be_evicted(&key, Pool::Roomy);
        if found != right && !evicted {
            return Err(format!("after the rescue key {key} has {found:?}: {right:?} is right"));
        }
    }
    Ok(())
}
