use std::collections::HashMap;

use mc_index::{Command, EvictItem, KeyHash, ObjectView, Op, Response, Settings, State};
use mc_log::{Entry, EntryPayload, Proposal};
use mc_types::Code;

/// The index, made once more from the entries of a log.
///
/// The log tells of each eviction that was asked for. Only its answer tells whether it took effect: the version may have
/// been replaced meanwhile, or its group may have grown.
pub(crate) struct Replay {
    state: State,
    /// Tenants and keys of all puts.
    names: HashMap<KeyHash, (String, Vec<u8>)>,
}

/// An object that an entry evicted.
pub(crate) struct Evicted {
    #[allow(dead_code, reason = "each key of the simulation belongs to one tenant")]
    pub(crate) tenant: String,
    pub(crate) key: String,
    pub(crate) object: ObjectView,
}

impl Replay {
    pub(crate) fn new() -> Self {
        Self { state: State::new(Settings::default()), names: HashMap::new() }
    }

    /// Applies the next entry, and returns the objects that it evicted. An eviction explains the loss of the version that
    /// it names, and of no other one.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Vec<Evicted> {
        let EntryPayload::Normal(Proposal(bytes)) = &entry.payload else { return Vec::new() };
        let command = Command::decode(bytes).expect("a command of this build");
        let mut meant = Vec::new();
        match &command.op {
            Op::PutStart { tenant, items } => {
                let name = |key: &[u8]| (KeyHash::of(tenant, key), (tenant.clone(), key.to_vec()));
                self.names.extend(items.iter().map(|item| name(&item.key)));
            }
            Op::Evict { items, .. } => meant.extend(items.iter().map(|item| self.find(item))),
            _ => {}
        }
        let id = entry.log_id;
        let Response::Codes(codes) = self.state.apply(id.index, id.leader_id.term, &command) else {
            return Vec::new();
        };
        let took_effect = meant.into_iter().zip(codes).filter(|(_, code)| *code == Code::Ok);
        took_effect.filter_map(|(evicted, _)| evicted).collect()
    }

    /// Returns each key that was ever put, with its tenant and its object.
    #[allow(dead_code, reason = "the fault matrix has no use for it")]
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&str, &[u8], Option<ObjectView>)> {
        self.names.values().map(|(tenant, key)| (&**tenant, &**key, self.state.get(tenant, key)))
    }

    /// Returns the index after the last entry.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the version that an eviction names, if it is there.
    fn find(&self, item: &EvictItem) -> Option<Evicted> {
        let (tenant, key) = self.names.get(&item.key)?;
        let object = self.state.get(tenant, key).filter(|object| object.version == item.version)?;
        Some(Evicted { tenant: tenant.clone(), key: String::from_utf8_lossy(key).into_owned(), object })
    }
}
