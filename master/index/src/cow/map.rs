use triomphe::Arc;

use crate::work::count_work;

/// Maximum number of entries in a leaf: small, because the first write after a clone copies a leaf.
const LEAF_MAX: usize = 32;
/// Maximum number of children of an inner node: smaller still, because copying the node increments the reference count
/// of every child, each a cache miss of its own.
const INNER_MAX: usize = 16;

/// A sorted map whose clone is O(1): a B+tree of shared nodes.
///
/// Behaviour depends on the entries alone, never on the shape of the tree, so a map rebuilt from a snapshot acts as the
/// original one.
pub(crate) struct CowMap<K, V> {
    root: Arc<Node<K, V>>,
    len: usize,
}

enum Node<K, V> {
    Leaf(Vec<(K, V)>),
    /// Each child with a lower bound of its keys. The bound is above all keys of the previous child; the bound of the first
    /// child is unused.
    Inner(Vec<Child<K, V>>),
}

type Child<K, V> = (K, Arc<Node<K, V>>);

impl<K, V> Clone for CowMap<K, V> {
    fn clone(&self) -> Self {
        Self { root: Arc::clone(&self.root), len: self.len }
    }
}

impl<K: Clone, V: Clone> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        // The copy is about to be written to, and mostly grows by one: spare room avoids a second copy.
        fn with_room<T: Clone>(from: &[T]) -> Vec<T> {
            let mut copy = Vec::with_capacity(from.len() + 1);
            copy.extend_from_slice(from);
            copy
        }
        match self {
            Self::Leaf(entries) => Self::Leaf(with_room(entries)),
            Self::Inner(children) => Self::Inner(with_room(children)),
        }
    }
}

impl<K: Copy + Ord, V: Clone> CowMap<K, V> {
    pub(crate) fn new() -> Self {
        Self { root: Arc::new(Node::Leaf(Vec::new())), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        count_work(1);
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                    return Some(&entries[at].1);
                }
                Node::Inner(children) => node = &children[child_of(children, key)].1,
            }
        }
    }

    /// Returns the value of `key`. It copies the path to the key where it is shared, so call it for keys that exist.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        count_work(1);
        let mut node = Arc::make_mut(&mut self.root);
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                    return Some(&mut entries[at].1);
                }
                Node::Inner(children) => {
                    let at = child_of(children, key);
                    node = Arc::make_mut(&mut children[at].1);
                }
            }
        }
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Inserts a value and returns the previous one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        count_work(1);
        let (old, right) = Arc::make_mut(&mut self.root).insert(key, value);
        if let Some((bound, right)) = right {
            let left = std::mem::replace(&mut self.root, Arc::new(Node::Inner(Vec::with_capacity(2))));
            if let Node::Inner(children) = Arc::make_mut(&mut self.root) {
                children.push((bound, left));
                children.push((bound, right));
            }
        }
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        // Look first: a miss must not copy the path.
        if !self.contains(key) {
            return None;
        }
        let old = Arc::make_mut(&mut self.root).remove(key);
        self.len -= usize::from(old.is_some());
        while let Node::Inner(children) = &*self.root {
            match children.as_slice() {
                [] => self.root = Arc::new(Node::Leaf(Vec::new())),
                [(_, only)] => self.root = Arc::clone(only),
                _ => break,
            }
        }
        old
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        count_work(1);
        self.root.first()
    }

    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        count_work(1);
        self.root.last()
    }

    /// Returns the first entry whose key is `key` or above.
    pub(crate) fn at_or_after(&self, key: &K) -> Option<(&K, &V)> {
        count_work(1);
        self.root.at_or_after(key)
    }

    /// Returns the last entry whose key is `key` or below.
    pub(crate) fn at_or_before(&self, key: &K) -> Option<(&K, &V)> {
        count_work(1);
        self.root.at_or_before(key)
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { path: Vec::new(), leaf: [].iter() };
        iter.descend(&self.root);
        iter
    }

    /// Iterates over the entries from the first whose key is `key` or above.
    pub(crate) fn iter_from(&self, key: &K) -> Iter<'_, K, V> {
        let mut iter = Iter { path: Vec::new(), leaf: [].iter() };
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    iter.leaf = entries[entries.partition_point(|(k, _)| k < key)..].iter();
                    return iter;
                }
                Node::Inner(children) => {
                    let at = child_of(children, key);
                    iter.path.push(children[at + 1..].iter());
                    node = &children[at].1;
                }
            }
        }
    }
}

/// Returns the index of the child under which `key` belongs.
fn child_of<K: Ord, C>(children: &[(K, C)], key: &K) -> usize {
    children.partition_point(|(bound, _)| bound <= key).saturating_sub(1)
}

/// Inserts an entry at `at`; a node that would get too large is split, and its right part is returned. Appending at the
/// very end leaves the left part full, so that ascending inserts pack the tree.
fn put<K: Copy, T>(
    entries: &mut Vec<(K, T)>,
    at: usize,
    entry: (K, T),
    max: usize,
) -> Option<(K, Vec<(K, T)>)> {
    if entries.len() < max {
        entries.insert(at, entry);
        return None;
    }
    let cut = if at == entries.len() { at } else { max / 2 };
    let mut right = entries.split_off(cut);
    if at <= cut && cut < max {
        entries.insert(at, entry);
    } else {
        right.insert(at - cut, entry);
    }
    Some((right[0].0, right))
}

impl<K: Copy + Ord, V: Clone> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }

    fn max(&self) -> usize {
        match self {
            Self::Leaf(_) => LEAF_MAX,
            Self::Inner(_) => INNER_MAX,
        }
    }

    /// Whether the node should be merged with a neighbour.
    fn is_small(&self) -> bool {
        self.len() < self.max() / 4
    }

    /// Inserts a value; returns the previous value, and the node's right part when the node had to be split.
    fn insert(&mut self, key: K, value: V) -> (Option<V>, Option<Child<K, V>>) {
        match self {
            Self::Leaf(entries) => match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(at) => (Some(std::mem::replace(&mut entries[at].1, value)), None),
                Err(at) => {
                    let right = put(entries, at, (key, value), LEAF_MAX);
                    (None, right.map(|(bound, right)| (bound, Arc::new(Self::Leaf(right)))))
                }
            },
            Self::Inner(children) => {
                let at = child_of(children, &key);
                let (old, split) = Arc::make_mut(&mut children[at].1).insert(key, value);
                let right = split.and_then(|child| put(children, at + 1, child, INNER_MAX));
                (old, right.map(|(bound, right)| (bound, Arc::new(Self::Inner(right)))))
            }
        }
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Self::Leaf(entries) => {
                let at = entries.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                Some(entries.remove(at).1)
            }
            Self::Inner(children) => {
                let at = child_of(children, key);
                let old = Arc::make_mut(&mut children[at].1).remove(key);
                if children[at].1.is_small() {
                    shrink(children, at);
                }
                old
            }
        }
    }

    fn first(&self) -> Option<(&K, &V)> {
        match self {
            Self::Leaf(entries) => entries.first().map(|(k, v)| (k, v)),
            Self::Inner(children) => children.first()?.1.first(),
        }
    }

    fn last(&self) -> Option<(&K, &V)> {
        match self {
            Self::Leaf(entries) => entries.last().map(|(k, v)| (k, v)),
            Self::Inner(children) => children.last()?.1.last(),
        }
    }

    fn at_or_after(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Self::Leaf(entries) => {
                entries.get(entries.partition_point(|(k, _)| k < key)).map(|(k, v)| (k, v))
            }
            Self::Inner(children) => {
                let at = child_of(children, key);
                children[at].1.at_or_after(key).or_else(|| children.get(at + 1)?.1.first())
            }
        }
    }

    fn at_or_before(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Self::Leaf(entries) => {
                let after = entries.partition_point(|(k, _)| k <= key);
                entries[..after].last().map(|(k, v)| (k, v))
            }
            Self::Inner(children) => {
                let at = child_of(children, key);
                children[at].1.at_or_before(key).or_else(|| children.get(at.checked_sub(1)?)?.1.last())
            }
        }
    }
}

/// Removes child `at` when it is empty, or merges it with a neighbour when both fit one node with room to spare.
fn shrink<K: Copy + Ord, V: Clone>(children: &mut Vec<Child<K, V>>, at: usize) {
    if children[at].1.len() == 0 {
        children.remove(at);
        return;
    }
    let left = if at > 0 { at - 1 } else { at };
    let Some((_, right)) = children.get(left + 1) else { return };
    if children[left].1.len() + right.len() > right.max() * 3 / 4 {
        return;
    }
    let (bound, right) = children.remove(left + 1);
    match (Arc::make_mut(&mut children[left].1), Arc::unwrap_or_clone(right)) {
        (Node::Leaf(into), Node::Leaf(from)) => into.extend(from),
        (Node::Inner(into), Node::Inner(mut from)) => {
            // While it was a first child, it may have taken keys below its own bound.
            if let Some(first) = from.first_mut() {
                first.0 = bound;
            }
            into.extend(from);
        }
        // All leaves are equally deep, so two neighbours are of the same kind.
        _ => {}
    }
}

/// Entries in the order of their keys.
pub(crate) struct Iter<'a, K, V> {
    path: Vec<std::slice::Iter<'a, Child<K, V>>>,
    leaf: std::slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Inner(children) => {
                    let mut rest = children.iter();
                    match rest.next() {
                        Some((_, child)) => node = child,
                        None => return,
                    }
                    self.path.push(rest);
                }
            }
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                count_work(1);
                return Some((key, value));
            }
            match self.path.last_mut()?.next() {
                Some((_, child)) => self.descend(child),
                None => {
                    self.path.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        RemoveRun(u16, u16),
        Clone,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..2000u16, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            4 => (0..2000u16).prop_map(Step::Remove),
            1 => (0..2000u16, 0..300u16).prop_map(|(k, n)| Step::RemoveRun(k, n)),
            1 => Just(Step::Clone),
        ]
    }

    fn assert_same(map: &CowMap<u16, u32>, model: &BTreeMap<u16, u32>) {
        assert!(map.iter().eq(model.iter()));
        assert_eq!(map.len(), model.len());
        assert_eq!((map.first(), map.last()), (model.first_key_value(), model.last_key_value()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
        #[test]
        fn acts_like_a_btree_map_and_clones_never_change(steps in prop::collection::vec(step(), 1..1500)) {
            let mut map = CowMap::new();
            let mut model = BTreeMap::new();
            let mut clones = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(k, v) => prop_assert_eq!(map.insert(k, v), model.insert(k, v)),
                    Step::Remove(k) => {
                        prop_assert_eq!(map.remove(&k), model.remove(&k));
                        prop_assert_eq!(map.at_or_after(&k), model.range(k..).next());
                        prop_assert!(map.iter_from(&k).eq(model.range(k..)));
                        prop_assert_eq!(map.at_or_before(&k), model.range(..=k).next_back());
                    }
                    Step::RemoveRun(k, n) => {
                        for k in k..k + n {
                            prop_assert_eq!(map.remove(&k), model.remove(&k));
                        }
                    }
                    Step::Clone => clones.push((map.clone(), model.clone())),
                }
                let probe = model.keys().next().copied().unwrap_or(3);
                prop_assert_eq!(map.get(&probe), model.get(&probe));
                if let Some(value) = map.get_mut(&probe) {
                    *value ^= 1;
                    *model.get_mut(&probe).unwrap() ^= 1;
                }
            }
            assert_same(&map, &model);
            for (map, model) in &clones {
                assert_same(map, model);
            }
        }
    }

    /// Deep trees, whose inner nodes lose their first children to runs of removals, take lower keys and merge.
    #[test]
    fn deep_trees_lose_nothing_when_inner_nodes_merge() {
        let mut random = 7u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let mut map = CowMap::new();
        let mut model = BTreeMap::new();
        for _ in 0..60 {
            for _ in 0..6000 {
                let key = below(1 << 16) as u16;
                assert_eq!(map.insert(key, 1), model.insert(key, 1));
            }
            for _ in 0..40 {
                let (from, count) = (below(1 << 16), below(3000));
                for key in (from..from + count).filter_map(|key| u16::try_from(key).ok()) {
                    assert_eq!(map.remove(&key), model.remove(&key), "{key}");
                    if below(20) == 0 {
                        let near = key.wrapping_sub(below(200) as u16);
                        assert_eq!(map.insert(near, 2), model.insert(near, 2), "{near}");
                    }
                }
            }
            assert_same(&map, &model);
            assert!(model.keys().all(|key| map.contains(key)), "every key is found from the root");
        }
    }

    #[test]
    fn ascending_inserts_pack_the_leaves() {
        let mut map = CowMap::new();
        for key in 0..LEAF_MAX * INNER_MAX {
            map.insert(key, ());
        }
        let Node::Inner(children) = &*map.root else { panic!("one level of leaves") };
        assert_eq!(children.len(), INNER_MAX, "every leaf is full");
    }
}
