//! Groups: objects that live and die together, such as the pools of one page of a KV cache.

use mc_types::{MAX_GROUP_MEMBERS, MAX_ITEMS};
use smallvec::SmallVec;

use crate::cow::CowMap;
use crate::key::{GroupId, KeyHash};

/// The members of a group: their keys by hash, each list sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// Objects in the index.
    pub(crate) members: SmallVec<[KeyHash; 3]>,
    /// Objects that were lost with their stores.
    pub(crate) lost: Vec<KeyHash>,
    /// Puts in flight that will join.
    pub(crate) joining: u32,
}

/// Maximum number of members, lost ones and puts in flight of a group. Half of it is for puts that replace members.
pub(crate) const ENTRIES_MAX: usize = 2 * MAX_GROUP_MEMBERS;
const _: () = assert!(ENTRIES_MAX < MAX_ITEMS);

impl Group {
    fn knows(&self, key: KeyHash) -> bool {
        find(&self.members, key).is_ok() || find(&self.lost, key).is_ok()
    }

    fn len(&self) -> usize {
        self.members.len() + self.lost.len() + self.joining as usize
    }
}

/// All groups with a member or a put in flight.
#[derive(Clone)]
pub(crate) struct Groups(CowMap<GroupId, Group>);

impl Groups {
    pub(crate) fn new() -> Self {
        Self(CowMap::new())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.0.get(&id)
    }

    /// Returns the group with this unit hash, the upper half of its id.
    pub(crate) fn of_unit(&self, unit: KeyHash) -> Option<GroupId> {
        let least = GroupId::from_u128(u128::from(unit.to_u64()) << 64);
        let (&id, _) = self.0.at_or_after(&least)?;
        (id.unit() == unit).then_some(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.0.iter().map(|(&id, group)| (id, group))
    }

    /// Whether one more member may join.
    pub(crate) fn has_room(&self, id: GroupId) -> bool {
        self.get(id).is_none_or(|group| group.len() < MAX_GROUP_MEMBERS)
    }

    /// Whether a put of `key` may join, as of cluster version 2: also one that replaces a member, or one that brings back a
    /// lost one, while the group is full. Such puts are bounded, too, because an entry must be able to evict the whole
    /// group.
    pub(crate) fn takes(&self, id: GroupId, key: KeyHash) -> bool {
        self.has_room(id) || self.get(id).is_some_and(|group| group.knows(key) && group.len() < ENTRIES_MAX)
    }

    /// Whether a snapshot may name one more member, or put in flight, of the group.
    pub(crate) fn may_have_more(&self, id: GroupId) -> bool {
        self.get(id).is_none_or(|group| group.len() < ENTRIES_MAX)
    }

    /// Changes a group. One without members and puts in flight is forgotten afterwards, with what it has lost.
    fn change(&mut self, id: GroupId, change: impl FnOnce(&mut Group)) {
        if let Some(group) = self.0.contains(&id).then(|| self.0.get_mut(&id)).flatten() {
            change(group);
            if group.members.is_empty() && group.joining == 0 {
                self.0.remove(&id);
            }
            return;
        }
        let mut group = Group::default();
        change(&mut group);
        if !group.members.is_empty() || group.joining > 0 {
            self.0.insert(id, group);
        }
    }

    /// Counts a put in flight that will join the group.
    pub(crate) fn begin(&mut self, id: Option<GroupId>) {
        if let Some(id) = id {
            self.change(id, |group| group.joining += 1);
        }
    }

    /// Stops counting a put in flight.
    pub(crate) fn end(&mut self, id: Option<GroupId>) {
        if let Some(id) = id {
            self.change(id, |group| group.joining = group.joining.saturating_sub(1));
        }
    }

    /// Adds an object to its group.
    pub(crate) fn join(&mut self, id: Option<GroupId>, key: KeyHash) {
        let Some(id) = id else { return };
        self.change(id, |group| {
            if let Ok(at) = find(&group.lost, key) {
                group.lost.remove(at);
            }
            let at = group.members.partition_point(|member| member.to_u64() < key.to_u64());
            group.members.insert(at, key);
        });
    }

    /// Takes an object out of its group.
    pub(crate) fn leave(&mut self, id: Option<GroupId>, key: KeyHash) {
        let Some(id) = id else { return };
        self.change(id, |group| take(group, key));
    }

    /// Takes an object out of its group that was removed with all others, and forgets which members were lost before.
    pub(crate) fn leave_all(&mut self, id: Option<GroupId>, key: KeyHash) {
        let Some(id) = id else { return };
        self.change(id, |group| {
            take(group, key);
            group.lost.clear();
        });
    }

    /// Records that an object was lost with its stores.
    ///
    /// Two keys may share a hash, by chance or because a client made them so. Both may be lost. As of cluster version 2,
    /// that is one lost member; before, it is two of one hash, which no build of version 1 reads in a snapshot.
    pub(crate) fn lose(&mut self, id: Option<GroupId>, key: KeyHash, cluster_version: u32) {
        let Some(id) = id else { return };
        self.change(id, |group| {
            take(group, key);
            match find(&group.lost, key) {
                Ok(_) if cluster_version >= 2 => {}
                Ok(at) | Err(at) => group.lost.insert(at, key),
            }
        });
    }

    /// Restores a lost member of a snapshot. An object whose key has the same hash may be a member.
    pub(crate) fn restore_lost(&mut self, id: GroupId, key: KeyHash) {
        self.change(id, |group| {
            let (Ok(at) | Err(at)) = find(&group.lost, key);
            group.lost.insert(at, key);
        });
    }
}

fn find(keys: &[KeyHash], key: KeyHash) -> Result<usize, usize> {
    keys.binary_search_by_key(&key.to_u64(), |it| it.to_u64())
}

fn take(group: &mut Group, key: KeyHash) {
    if let Ok(at) = find(&group.members, key) {
        group.members.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> KeyHash {
        KeyHash::of("", &[n])
    }

    #[test]
    fn a_group_lives_as_long_as_a_member_or_a_put_does() {
        let mut groups = Groups::new();
        let group = GroupId::of("t", b"page");
        let id = Some(group);
        groups.begin(id);
        groups.begin(id);
        groups.end(id);
        groups.join(id, key(1));
        groups.end(id);
        assert_eq!(groups.len(), 1);
        groups.join(id, key(2));
        groups.lose(id, key(1), 2);
        assert_eq!(groups.get(group).map(|it| (it.members.len(), it.lost.len())), Some((1, 1)));
        groups.join(id, key(1));
        assert_eq!(groups.get(group).map(|it| (it.members.len(), it.lost.len())), Some((2, 0)));
        groups.leave(id, key(1));
        groups.lose(id, key(2), 2);
        assert_eq!(groups.len(), 0, "nothing is left of it");
    }

    #[test]
    fn groups_of_two_tenants_and_a_key_of_the_same_name_differ() {
        assert_ne!(GroupId::of("a", b"b"), GroupId::of("", b"ab"));
        assert_ne!(GroupId::of("", b"k").unit(), KeyHash::of("", b"k"));
    }
}
