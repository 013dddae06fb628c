use bytes::Bytes;
use mc_types::{ClusterTime, Code, PutId, SegmentEpoch, StoreId};

use super::{
    EvictItem, MountStore, Op, ProvenEnd, PutEndItem, PutEnded, PutStartItem, PutStarted, Quota, RemoveItem,
    Response, SecurityChange, Settings, Stamp, encode,
};
use crate::key::KeyHash;

/// An operation to propose, with the type of its answer.
///
/// A command's [`Response`] is one enum for all operations. A request knows which variant answers it, so its caller
/// does not have to match on the others.
#[derive(Debug)]
pub struct Request<A> {
    op: Op,
    answer: fn(Response) -> Option<A>,
}

impl<A> Request<A> {
    /// The operation.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// Encodes the command of this operation and a stamp, as [`Command::encode`](super::Command::encode) does. The request stays,
    /// so that its caller can propose parts of it again.
    #[must_use]
    pub fn encode(&self, stamp: &Stamp) -> Bytes {
        encode(stamp, &self.op)
    }

    /// Splits the request into the operation and the function that reads its answer, for callers that keep nothing.
    #[must_use]
    pub fn split(self) -> (Op, fn(Response) -> Option<A>) {
        (self.op, self.answer)
    }

    /// Returns the answer to the operation; `None` when its entry's term was not the stamp's, so that it did nothing.
    #[must_use]
    pub fn answer(&self, response: Response) -> Option<A> {
        (self.answer)(response)
    }
}

impl Request<()> {
    /// Brings the cluster's time forward.
    #[must_use]
    pub fn tick() -> Self {
        Self { op: Op::Tick, answer: done }
    }

    /// Replaces the replicated settings.
    #[must_use]
    pub fn set_settings(settings: Settings) -> Self {
        Self { op: Op::SetSettings(settings), answer: done }
    }

    /// Notes objects that were used again, and the share of the once-seen queue.
    #[must_use]
    pub fn note_reuse(keys: Vec<KeyHash>, epoch: u32, once_share: u32) -> Self {
        Self { op: Op::NoteReuse { keys, epoch, once_share }, answer: done }
    }

    /// Raises the cluster version.
    #[must_use]
    pub fn set_cluster_version(version: u32) -> Self {
        Self { op: Op::SetClusterVersion(version), answer: done }
    }
}

impl Request<Code> {
    /// Mounts a store.
    #[must_use]
    pub fn mount_store(mount: MountStore) -> Self {
        Self { op: Op::MountStore(mount), answer: code }
    }

    /// Drops a store and its replicas.
    #[must_use]
    pub fn drop_store(store: StoreId, epoch: SegmentEpoch) -> Self {
        Self { op: Op::DropStore { store, epoch }, answer: code }
    }
}

impl Request<Code> {
    /// Registers a tenant with a quota; `None` unregisters it.
    #[must_use]
    pub fn set_tenant(tenant: String, quota: Option<Quota>) -> Self {
        Self { op: Op::SetTenant { tenant, quota }, answer: code }
    }

    /// Changes the access settings.
    #[must_use]
    pub fn set_security(change: SecurityChange) -> Self {
        Self { op: Op::SetSecurity(change), answer: code }
    }

    /// Sets an entry of the key-value table; `None` removes it.
    #[must_use]
    pub fn set_key_value(key: Vec<u8>, value: Option<Vec<u8>>) -> Self {
        Self { op: Op::SetKeyValue { key, value: value.map(Into::into) }, answer: code }
    }
}

impl Request<u64> {
    /// Removes all objects of a tenant; the answer is their number. Their bytes may be reused from `reuse_at` on.
    #[must_use]
    pub fn remove_all(tenant: String, reuse_at: ClusterTime) -> Self {
        Self { op: Op::RemoveAll { tenant, reuse_at }, answer: removed }
    }
}

impl Request<bool> {
    /// Frees up to `limit` objects of dropped stores; the answer says whether there are more.
    #[must_use]
    pub fn sweep(limit: u32) -> Self {
        Self { op: Op::Sweep { limit }, answer: more }
    }
}

impl Request<Vec<PutStarted>> {
    /// Starts puts; one answer an item.
    #[must_use]
    pub fn put_start(tenant: String, items: Vec<PutStartItem>) -> Self {
        Self { op: Op::PutStart { tenant, items }, answer: started }
    }

    /// The puts that it starts.
    #[must_use]
    pub fn items(&self) -> &[PutStartItem] {
        // No other operation is answered by a `Vec<PutStarted>`.
        if let Op::PutStart { items, .. } = &self.op { items } else { &[] }
    }
}

impl Request<Vec<PutEnded>> {
    /// Ends puts; one answer an item.
    #[must_use]
    pub fn put_end(items: Vec<PutEndItem>) -> Self {
        Self { op: Op::PutEnd { items }, answer: ended }
    }

    /// Ends puts that were proven to be written; one answer an item.
    #[must_use]
    pub fn put_end_proven(items: Vec<ProvenEnd>) -> Self {
        Self { op: Op::PutEndProven { items }, answer: ended }
    }
}

impl Request<Vec<Code>> {
    /// Gives puts up; one code a put.
    #[must_use]
    pub fn put_revoke(puts: Vec<PutId>) -> Self {
        Self { op: Op::PutRevoke { puts }, answer: codes }
    }

    /// Removes objects; one code an item.
    #[must_use]
    pub fn remove(tenant: String, items: Vec<RemoveItem>) -> Self {
        Self { op: Op::Remove { tenant, items }, answer: codes }
    }

    /// Drops the replicas of objects on one store; one code an item.
    #[must_use]
    pub fn drop_replicas(tenant: String, store: StoreId, items: Vec<RemoveItem>) -> Self {
        Self { op: Op::DropReplicas { tenant, store, items }, answer: codes }
    }

    /// Evicts objects; one code an item. Their bytes may be reused from `reuse_at` on.
    #[must_use]
    pub fn evict(items: Vec<EvictItem>, reuse_at: ClusterTime) -> Self {
        Self { op: Op::Evict { items, reuse_at }, answer: codes }
    }
}

fn done(response: Response) -> Option<()> {
    matches!(response, Response::Done).then_some(())
}

fn code(response: Response) -> Option<Code> {
    codes(response)?.pop()
}

fn codes(response: Response) -> Option<Vec<Code>> {
    if let Response::Codes(codes) = response { Some(codes) } else { None }
}

fn removed(response: Response) -> Option<u64> {
    if let Response::Removed(objects) = response { Some(objects) } else { None }
}

fn more(response: Response) -> Option<bool> {
    if let Response::Swept { more } = response { Some(more) } else { None }
}

fn started(response: Response) -> Option<Vec<PutStarted>> {
    if let Response::PutStarted(started) = response { Some(started) } else { None }
}

fn ended(response: Response) -> Option<Vec<PutEnded>> {
    if let Response::PutEnded(ended) = response { Some(ended) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Stamp, State};
    use mc_types::GrantKey;

    /// Whether `request` gets an answer from an entry of the stamp's term, and from one of another term.
    fn answered<A>(request: impl Fn() -> Request<A>) -> (bool, bool) {
        let read = |term| {
            let request = request();
            let mut state = State::new(Settings::default());
            let encoded = request.encode(&Stamp { term: 1, ..Stamp::default() });
            let command = Command::decode(&encoded).unwrap();
            request.answer(state.apply(1, term, &command)).is_some()
        };
        (read(1), read(2))
    }

    #[test]
    fn each_request_reads_the_response_to_its_operation_and_none_of_another_term() {
        let mount = || MountStore {
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            name: String::new(),
            grant_key: GrantKey([0; 32]),
            endpoints: vec![],
            segments: vec![1 << 20],
            http: String::new(),
        };
        let item = || RemoveItem { key: vec![1], version: PutId(1), reuse_at: Default::default() };
        let tenant = String::new;
        assert_eq!(answered(|| Request::mount_store(mount())), (true, false));
        assert_eq!(answered(|| Request::drop_store(StoreId(1), SegmentEpoch(1))), (true, false));
        assert_eq!(answered(|| Request::sweep(1)), (true, false));
        assert_eq!(answered(|| Request::put_start(tenant(), vec![])), (true, false));
        assert_eq!(answered(|| Request::put_end(vec![])), (true, false));
        assert_eq!(answered(|| Request::put_end_proven(vec![])), (true, false));
        assert_eq!(answered(|| Request::put_revoke(vec![PutId(1)])), (true, false));
        assert_eq!(answered(|| Request::remove(tenant(), vec![item()])), (true, false));
        assert_eq!(answered(|| Request::evict(vec![], ClusterTime(0))), (true, false));
        assert_eq!(answered(|| Request::note_reuse(vec![], 1, 1)), (true, false));
        assert_eq!(answered(|| Request::remove_all(tenant(), ClusterTime(0))), (true, false));
        assert_eq!(answered(|| Request::drop_replicas(tenant(), StoreId(1), vec![item()])), (true, false));
        assert_eq!(answered(|| Request::set_tenant(tenant(), Some(Quota::NONE))), (true, true));
        assert_eq!(answered(|| Request::set_key_value(vec![1], None)), (true, true));
        // No leader decides these from its soft state.
        assert_eq!(answered(Request::tick), (true, true));
        assert_eq!(answered(|| Request::set_settings(Settings::default())), (true, true));
        assert_eq!(answered(|| Request::set_cluster_version(1)), (true, true));
    }
}
