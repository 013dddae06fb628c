//! Comparison of a state with the model.

use std::collections::{BTreeMap, BTreeSet};

use mc_index::{GroupId, HeldRange, KeyHash, PlacedReplica, State, TenantName};

use super::{Count, Key, Model, overlap, rounded};

impl Model {
    /// The state must say what the model says.
    pub(super) fn compare(&self, state: &State) {
        assert_eq!(state.time(), self.time);
        assert_eq!(*state.settings(), self.settings);
        assert_eq!(state.cluster_version(), self.cluster_version);
        assert_eq!(state.puts_in_flight(), self.puts.len() as u64);
        let in_flight = self.puts.values().flat_map(|put| &put.replicas).map(|replica| rounded(replica.len));
        assert_eq!(state.in_flight_bytes(), in_flight.sum::<u64>());
        for &(store, epoch) in &self.dead {
            assert!(state.epoch_is_dead(store, epoch));
        }
        let mut visible = 0;
        for (key, object) in &self.objects {
            let live: Vec<_> = object.replicas.iter().copied().filter(|r| self.is_mounted(r)).collect();
            let seen = state.get(&key.0, &key.1);
            assert_eq!(seen.is_some(), !live.is_empty(), "{key:?}");
            if let Some(seen) = seen {
                visible += 1;
                assert_eq!(
                    (seen.version, seen.size, seen.checksum, seen.pin),
                    (object.version, object.size, object.checksum, object.pin)
                );
                assert_eq!((seen.data_type, seen.group), (object.data_type, object.group));
                assert_eq!(seen.replicas[..], live[..]);
            }
        }
        let swept = !state.needs_sweep();
        assert!(state.objects() == visible || !swept && state.objects() > visible, "objects are counted");
        for (id, put) in &self.puts {
            let seen = state.put(*id).expect("the put is in flight");
            assert_eq!((seen.tenant, seen.key), (put.key.0.as_bytes(), &put.key.1[..]));
            assert_eq!((seen.size, seen.mode, seen.deadline), (put.size, put.mode, put.deadline));
        }
        for (tenant, key) in self.objects.keys().chain(self.puts.values().map(|put| &put.key)) {
            let written = self.puts.values().any(|put| (&put.key.0, &put.key.1) == (tenant, key));
            assert_eq!(state.is_being_written(tenant, key), written);
        }
        let mut held: Vec<_> = state.held().collect();
        let mut expected = self.held.clone();
        let order = |h: &HeldRange| (h.place.store, h.place.segment, h.place.offset);
        held.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(held, expected, "held bytes");
        let deadlines = self.puts.values().map(|p| p.deadline).chain(self.held.iter().map(|h| h.reuse_at));
        assert_eq!(state.next_deadline(), deadlines.min());
        self.compare_stores(state);
        let bytes =
            |ranges: &mut dyn Iterator<Item = PlacedReplica>| ranges.map(|r| rounded(r.len)).sum::<u64>();
        let held = bytes(&mut self.held.iter().map(|held| held.place));
        let usage = state.usage(&[]);
        let (live, pinned) = (bytes(&mut self.in_use()) - held, self.hard_pinned());
        let cleared = || self.cleared.iter().filter(|it| self.is_mounted(&it.place));
        let most = live + bytes(&mut cleared().map(|it| it.place));
        let most_pinned = pinned + bytes(&mut cleared().filter(|it| it.pin.is_hard()).map(|it| it.place));
        assert_eq!(usage.held, held);
        assert!((live..=most).contains(&usage.live) && (pinned..=most_pinned).contains(&usage.pinned));
        for (key, object) in self.objects.iter().filter(|(key, _)| self.visible(key).is_some()) {
            let found: Vec<_> = state.with_hash(KeyHash::of(&key.0, &key.1)).collect();
            let live = object.replicas.iter().filter(|r| self.is_mounted(r)).map(|r| r.store);
            assert_eq!(found.len(), 1, "{key:?}");
            assert_eq!((found[0].version, found[0].size), (object.version, object.size));
            assert_eq!(found[0].stores.to_vec(), live.collect::<Vec<_>>());
        }
        let ages: BTreeMap<_, _> =
            state.ages().map(|age| (age.key.to_u64(), (age.reused, age.put))).collect();
        let visible_objects = self.objects.iter().filter(|(key, _)| self.visible(key).is_some());
        let expected = visible_objects.map(|(key, object)| {
            let put = object.replicas.iter().map(|replica| replica.index).min().unwrap();
            (KeyHash::of(&key.0, &key.1).to_u64(), (object.reused, put))
        });
        assert_eq!(ages, expected.collect());
        assert_eq!(state.once_share(), self.once_share);
        self.compare_listing(state);
    }

    pub(super) fn compare_tenants(&self, state: &State) {
        let mut names: BTreeSet<&str> = self.objects.keys().map(|key| &key.0[..]).collect();
        names.extend(self.puts.values().map(|put| &put.key.0[..]));
        names.extend(self.quotas.keys().map(|name| &name[..]));
        for view in state.tenants() {
            let name = std::str::from_utf8(view.name.as_bytes()).unwrap();
            assert_eq!(view.registered, self.quotas.get(name).copied());
            let known = names.contains(name) || !self.cleared.is_empty() || state.needs_sweep();
            assert!(known, "{name}");
        }
        for name in names {
            let all = state.tenant_usage(&TenantName::new(name.as_bytes())).all();
            let seen = (all.count, all.bytes, all.pinned);
            let (least, most) = (self.usage(name, Count::Least), self.usage(name, Count::Most));
            let between = |seen, least, most| (least..=most).contains(&seen);
            assert!(
                between(seen.0, least.0, most.0)
                    && between(seen.1, least.1, most.1)
                    && between(seen.2, least.2, most.2),
                "{seen:?} is not from {least:?} to {most:?}"
            );
            assert!(state.needs_sweep() || seen == least, "{seen:?} instead of {least:?}");
        }
        for (key, value) in &self.key_values {
            assert_eq!(state.key_value(key), Some(&value[..]));
        }
    }

    pub(super) fn compare_groups(&mut self, state: &State) {
        let in_objects = self.objects.values().filter_map(|object| object.group);
        let groups: BTreeSet<GroupId> =
            in_objects.chain(self.puts.values().filter_map(|put| put.group)).collect();
        self.lost.retain(|group, _| groups.contains(group));
        for group in groups {
            self.note_if_forgotten(group);
            let of_group = || self.objects.iter().filter(|(_, object)| object.group == Some(group));
            let (visible, lost): (Vec<_>, Vec<_>) =
                of_group().partition(|(key, _)| self.visible(key).is_some());
            let joining = self.puts.values().filter(|put| put.group == Some(group)).count();
            let seen = state.group(group).unwrap_or_default();
            let mut members: Vec<_> =
                seen.members.iter().map(|member| (member.key.to_u64(), member.version)).collect();
            members.sort_unstable();
            let mut expected: Vec<_> = visible
                .iter()
                .map(|(key, object)| (KeyHash::of(&key.0, &key.1).to_u64(), object.version))
                .collect();
            expected.sort_unstable();
            assert_eq!((members, seen.joining as usize), (expected, joining));
            if !self.forgotten.contains(&group) {
                let mut all: BTreeSet<&Key> = lost.iter().map(|(key, _)| *key).collect();
                all.extend(self.lost.get(&group).into_iter().flatten());
                assert_eq!(seen.lost, all.len(), "{group:?}");
            }
        }
    }

    /// Pages of two keys name every visible object once.
    fn compare_listing(&self, state: &State) {
        for prefix in [&b""[..], b"kkk"] {
            let (mut listed, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let page = state.list("t", prefix, at, 2, usize::MAX);
                listed.extend(page.objects.into_iter().map(|object| (object.key, object.size)));
                from = page.next;
            }
            listed.sort();
            let visible = self.objects.iter().filter(|(key, _)| self.visible(key).is_some());
            let visible = visible.filter(|(key, _)| key.0 == "t" && key.1.starts_with(prefix));
            let mut expected: Vec<_> = visible.map(|(key, object)| (key.1.clone(), object.size)).collect();
            expected.sort();
            assert_eq!(listed, expected);
        }
    }

    fn compare_stores(&self, state: &State) {
        let mut ranges: Vec<_> = self.in_use().collect();
        ranges.sort_by_key(|r| (r.store, r.segment, r.offset));
        for pair in ranges.windows(2) {
            assert!(!overlap(&pair[0], &pair[1]), "{pair:?}");
        }
        assert_eq!(state.stores().count(), self.mounted.len());
        for store in state.stores() {
            let mount = &self.mounted[&store.store];
            assert_eq!((store.epoch, store.name, store.http), (mount.epoch, &*mount.name, &*mount.http));
            assert_eq!((store.endpoints, store.segments), (&mount.endpoints[..], &mount.segments[..]));
            let earlier = self.earlier_keys.get(&store.store).filter(|(_, until)| self.time < *until);
            let keys = (store.grant_key, store.earlier_key.copied());
            assert_eq!(keys, (&mount.grant_key, earlier.map(|(key, _)| *key)));
            let here = |r: &&PlacedReplica| r.store == store.store;
            let used: u64 = ranges.iter().filter(here).map(|r| rounded(r.len)).sum();
            let cleared = self.cleared.iter().map(|cleared| &cleared.place).filter(here);
            let most = used + cleared.map(|r| rounded(r.len)).sum::<u64>();
            assert!((used..=most).contains(&store.used), "used = objects + puts in flight + held + cleared");
            assert_eq!(store.capacity, mount.segments.iter().map(|bytes| bytes / 64 * 64).sum::<u64>());
            let objects = self.objects.values().flat_map(|object| &object.replicas);
            let objects = objects.filter(|r| here(r) && self.is_mounted(r)).count() as u64;
            let most = objects + self.cleared.iter().filter(|it| here(&&it.place)).count() as u64;
            assert!((objects..=most).contains(&store.objects));
        }
    }
}
