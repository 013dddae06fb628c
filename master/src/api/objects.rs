//! Exist, get, put and remove: batches in, one result per item out.

use mc_index::{
    KeyHash, ObjectView, Op, PutEndItem, PutMode, PutStartItem, RemoveItem, Response, StartKey, State,
};
use mc_proto::v1;
use mc_types::{Access, ClusterTime, Code, PutId, StoreId};

use super::Refusal;
use super::grants::{Grants, bytes};
use crate::leader::{Coordinator, Leading};

/// How often a remove that names no version follows an upsert that was faster.
const REMOVE_ROUNDS: usize = 3;

impl Coordinator {
    pub(crate) async fn exist(&self, request: v1::BatchExistRequest) -> Result<v1::BatchExistReply, Refusal> {
        limits(&request.tenant, request.keys.len())?;
        let leading = self.lead().await?;
        let results = self.index.read(|applied| {
            let find = |key: &bytes::Bytes| match find(&applied.state, &leading, &request.tenant, key) {
                Ok(object) => v1::ExistResult { code: Code::Ok as i32, size: object.size },
                Err(code) => v1::ExistResult { code: code as i32, size: 0 },
            };
            request.keys.iter().map(find).collect()
        });
        Ok(v1::BatchExistReply { results })
    }

    pub(crate) async fn get(&self, request: v1::BatchGetRequest) -> Result<v1::BatchGetReply, Refusal> {
        limits(&request.tenant, request.keys.len())?;
        let leading = self.lead().await?;
        let expires = leading.now().after(leading.read_lease());
        let (results, grants) = self.index.read(|applied| {
            let mut grants = Grants::new(&applied.state, self.cluster, Access::Read, expires);
            let results: Vec<_> = request
                .keys
                .iter()
                .map(|key| match find(&applied.state, &leading, &request.tenant, key) {
                    Ok(object) => placed(&object, &leading, &mut grants),
                    Err(code) => v1::GetResult { code: code as i32, ..Default::default() },
                })
                .collect();
            (results, grants.seal())
        });
        let lease_ms = u64::try_from(leading.read_lease().as_millis()).unwrap_or(u64::MAX);
        Ok(v1::BatchGetReply { results, grants, lease_ms })
    }

    pub(crate) async fn put_start(
        &self,
        request: v1::BatchPutStartRequest,
    ) -> Result<v1::BatchPutStartReply, Refusal> {
        limits(&request.tenant, request.items.len())?;
        let items = request.items;
        let leading = self.lead().await?;
        // Of all calls this one alone makes more to be written later: ends and removes only finish what was begun.
        self.refuse_without_room()?;
        let deadline = leading.put_deadlines();
        let items: Vec<_> = items.iter().map(|item| start_item(item, &deadline)).collect::<Result<_, _>>()?;
        let expires = items.iter().map(|item| item.deadline).max().unwrap_or_default();
        let Response::PutStarted(started) =
            self.propose(&leading, Op::PutStart { tenant: request.tenant, items }).await?
        else {
            return Err(unexpected_answer());
        };
        Ok(self.index.read(|applied| {
            let mut grants = Grants::new(&applied.state, self.cluster, Access::Write, expires);
            let results = started
                .into_iter()
                .map(|started| {
                    // A store that was dropped right after it was placed on has no grant: its replica is left out, and
                    // the place of the others in the start's answer is what the end names them by, so none is left.
                    let replicas: Option<Vec<_>> =
                        started.replicas.iter().map(|replica| grants.add(replica)).collect();
                    match replicas {
                        Some(replicas) => v1::PutStartResult { code: started.code as i32, replicas },
                        None => v1::PutStartResult { code: Code::NoAvailableHandle as i32, replicas: vec![] },
                    }
                })
                .collect();
            v1::BatchPutStartReply { results, grants: grants.seal() }
        }))
    }

    pub(crate) async fn put_end(
        &self,
        request: v1::BatchPutEndRequest,
    ) -> Result<v1::BatchPutEndReply, Refusal> {
        limits(&request.tenant, request.items.len())?;
        let leading = self.lead().await?;
        let reuse_at = leading.hold_until();
        let item = |item: &v1::PutEndItem| {
            Ok(PutEndItem {
                put: put_id(&item.put_id)?,
                key: KeyHash::of(&request.tenant, &item.key),
                checksum: item.checksum,
                failed: item
                    .failed_replicas
                    .iter()
                    .map(|place| u8::try_from(*place).unwrap_or(u8::MAX))
                    .collect(),
                reuse_at,
            })
        };
        let items = request.items.iter().map(item).collect::<Result<_, Refusal>>()?;
        let Response::PutEnded(ended) = self.propose(&leading, Op::PutEnd { items }).await? else {
            return Err(unexpected_answer());
        };
        let results = ended.iter().map(|ended| v1::PutEndResult { code: ended.code as i32 }).collect();
        Ok(v1::BatchPutEndReply { results })
    }

    pub(crate) async fn put_revoke(
        &self,
        request: v1::BatchPutRevokeRequest,
    ) -> Result<v1::BatchPutRevokeReply, Refusal> {
        limits(&request.tenant, request.put_ids.len())?;
        let leading = self.lead().await?;
        let puts = request.put_ids.iter().map(|id| put_id(id)).collect::<Result<_, _>>()?;
        let codes = codes(self.propose(&leading, Op::PutRevoke { puts }).await?)?;
        let results = codes.into_iter().map(|code| v1::PutEndResult { code: code as i32 }).collect();
        Ok(v1::BatchPutRevokeReply { results })
    }

    /// Removes the versions that are there now. What is not there, leased or another version is answered from here; the
    /// rest is one entry that names (key, version), so that a newer version is never hit. An item that names no version
    /// and lost a race with an upsert is tried again with the newer one.
    pub(crate) async fn remove(
        &self,
        request: v1::BatchRemoveRequest,
    ) -> Result<v1::BatchRemoveReply, Refusal> {
        limits(&request.tenant, request.items.len())?;
        let mut codes: Vec<Option<Code>> = vec![None; request.items.len()];
        for round in 0..REMOVE_ROUNDS {
            match self.remove_round(&request, &mut codes).await {
                Ok(()) => {}
                Err(refusal) if round == 0 => return Err(refusal),
                // Some items are removed by now, so the call as a whole has no definite failure left.
                Err(refusal) => return Err(Refusal::Unknown(format!("a part was removed, then: {refusal}"))),
            }
            if codes.iter().all(Option::is_some) {
                break;
            }
        }
        let result =
            |code: Option<Code>| v1::RemoveResult { code: code.unwrap_or(Code::VersionChanged) as i32 };
        Ok(v1::BatchRemoveReply { results: codes.into_iter().map(result).collect() })
    }

    /// Answers the items that have no code yet, but for those that lost a race.
    async fn remove_round(
        &self,
        request: &v1::BatchRemoveRequest,
        answers: &mut [Option<Code>],
    ) -> Result<(), Refusal> {
        let leading = self.lead().await?;
        let reuse_at = leading.hold_until();
        let mut proposed = Vec::new();
        self.index.read(|applied| {
            for (place, item) in request.items.iter().enumerate() {
                if answers[place].is_some() {
                    continue;
                }
                let code = match applied.state.get(&request.tenant, &item.key) {
                    None => Code::ObjectNotFound,
                    Some(object)
                        if !item.version.is_empty() && item.version[..] != object.version.to_bytes() =>
                    {
                        Code::VersionChanged
                    }
                    Some(object) if !request.force && leading.is_leased(object.version) => {
                        Code::ObjectHasLease
                    }
                    Some(object) => {
                        let key = item.key.to_vec();
                        proposed.push((place, RemoveItem { key, version: object.version, reuse_at }));
                        continue;
                    }
                };
                answers[place] = Some(code);
            }
        });
        if proposed.is_empty() {
            return Ok(());
        }
        let (places, items): (Vec<_>, Vec<_>) = proposed.into_iter().unzip();
        let tenant = request.tenant.clone();
        let answer = self.propose(&leading, Op::Remove { tenant, items }).await?;
        for (place, code) in places.into_iter().zip(codes(answer)?) {
            let raced = code == Code::VersionChanged && request.items[place].version.is_empty();
            answers[place] = (!raced).then_some(code);
        }
        Ok(())
    }
}

/// The object under `key`, leased to whoever asked; or the code that says why there is none.
fn find(state: &State, leading: &Leading, tenant: &str, key: &[u8]) -> Result<ObjectView, Code> {
    if key.is_empty() || key.len() > mc_types::MAX_KEY_LEN {
        return Err(Code::InvalidKey);
    }
    let object = state.get(tenant, key).ok_or(Code::ObjectNotFound)?;
    if object.replicas.iter().all(|replica| leading.is_suspect(replica.store)) {
        return Err(Code::ReplicaIsNotReady);
    }
    leading.lease(object.version);
    Ok(object)
}

/// A get's answer: the replicas on stores that are not suspect, each with its place in a grant.
fn placed(object: &ObjectView, leading: &Leading, grants: &mut Grants<'_>) -> v1::GetResult {
    let offered = object.replicas.iter().filter(|replica| !leading.is_suspect(replica.store));
    let replicas: Vec<_> = offered.filter_map(|replica| grants.add(replica)).collect();
    if replicas.is_empty() {
        return v1::GetResult { code: Code::ReplicaIsNotReady as i32, ..Default::default() };
    }
    v1::GetResult {
        code: Code::Ok as i32,
        version: bytes(&object.version.to_bytes()),
        size: object.size,
        checksum: object.checksum,
        replicas,
    }
}

/// `deadline` of what was asked for.
pub(super) fn start_item(
    item: &v1::PutStartItem,
    deadline: &impl Fn(u64) -> ClusterTime,
) -> Result<PutStartItem, Refusal> {
    Ok(PutStartItem {
        put: put_id(&item.put_id)?,
        key: StartKey::from_slice(&item.key),
        size: item.size,
        mode: match v1::PutMode::try_from(item.mode) {
            Ok(v1::PutMode::IfAbsent) => PutMode::IfAbsent,
            Ok(v1::PutMode::Upsert) => PutMode::Upsert,
            Err(_) => return Err(Refusal::Invalid(format!("put mode {} is not known here", item.mode))),
        },
        replicas: u8::try_from(item.replicas.max(1)).unwrap_or(u8::MAX),
        deadline: deadline(item.deadline_ms),
        preferred: item.preferred_stores.iter().copied().map(StoreId).collect(),
        avoid: item.avoid_stores.iter().copied().map(StoreId).collect(),
    })
}

pub(super) fn put_id(id: &[u8]) -> Result<PutId, Refusal> {
    PutId::from_bytes(id).ok_or_else(|| Refusal::Invalid(format!("a put id has 16 bytes, not {}", id.len())))
}

pub(super) fn limits(tenant: &str, items: usize) -> Result<(), Refusal> {
    if tenant.len() > mc_types::MAX_TENANT_LEN {
        let (len, max) = (tenant.len(), mc_types::MAX_TENANT_LEN);
        return Err(Refusal::Invalid(format!("the tenant's name has {len} bytes, the limit is {max}")));
    }
    if items > mc_types::MAX_ITEMS {
        let max = mc_types::MAX_ITEMS;
        return Err(Refusal::Invalid(format!(
            "{items} items in one call, the limit is {max}: split the batch"
        )));
    }
    Ok(())
}

fn codes(response: Response) -> Result<Vec<Code>, Refusal> {
    match response {
        Response::Codes(codes) => Ok(codes),
        _ => Err(unexpected_answer()),
    }
}

fn unexpected_answer() -> Refusal {
    Refusal::Unknown("the state machine answered something else than was asked, which is a bug".into())
}
