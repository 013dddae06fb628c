//! A round of puts: one start, write and end of a chunk, and the state in which it leaves each put.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use mc_transfer::WriteBuffer;
use mc_types::{ByteSize, Code, MAX_GROUP_LEN, PutId, Receipt, StoreId};
use tokio::time::Instant;

use crate::core::{check_key, item_error, item_error_with};
use crate::local::EmbeddedPlace;
use crate::placement::Place;
use crate::{Error, Put};

/// An object to put.
#[derive(Clone, Debug)]
pub(crate) struct PutItem<'a> {
    pub(crate) key: Bytes,
    /// Its bytes, in order.
    pub(crate) from: Vec<WriteBuffer<'a>>,
    /// Name of the group that it joins; empty for that of the options.
    pub(crate) group: Bytes,
}

/// A put that has no result yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingPut<'a> {
    /// Index in the batch.
    pub(crate) at: usize,
    pub(crate) key: Bytes,
    pub(crate) from: &'a [WriteBuffer<'a>],
    /// Name of the group that it joins, if its item names one.
    pub(crate) group: Bytes,
    pub(crate) size: u64,
    pub(crate) put: PutId,
    /// Stores that failed this put.
    pub(crate) avoid: Vec<StoreId>,
    /// Whether the put was started again after a failure. That is done only once.
    pub(crate) again: bool,
    /// The failure after which it was started again on other stores.
    pub(crate) failure: Option<Error>,
    /// Whether the leader is also asked to leave out stores that failed other calls.
    pub(crate) choosy: bool,
    /// Whether an earlier call may have ended it.
    pub(crate) maybe_ended: bool,
    /// Place in this process's own store, if a replica was written there.
    pub(crate) spot: Option<EmbeddedPlace>,
}

impl<'a> PutItem<'a> {
    /// Creates items of keys and buffers. All keys share one allocation.
    pub(crate) fn all<'k>(
        items: impl Iterator<Item = (&'k [u8], Vec<WriteBuffer<'a>>, &'k [u8])> + Clone,
    ) -> Vec<Self> {
        let mut keys = Bytes::from(items.clone().map(|(key, ..)| key).collect::<Vec<_>>().concat());
        let item = |(key, from, group): (&[u8], _, _)| {
            let key = keys.split_to(key.len());
            Self { key, from, group: Bytes::copy_from_slice(group) }
        };
        items.map(item).collect()
    }

    /// [`Self::all`] of keys and values, in the group of the options.
    pub(crate) fn of_values<'k: 'a>(items: impl Iterator<Item = (&'k [u8], &'a [u8])> + Clone) -> Vec<Self> {
        Self::all(items.map(|(key, value)| (key, vec![value.into()], &[][..])))
    }
}

impl<'a> PendingPut<'a> {
    /// Creates a put that has not been started.
    pub(crate) fn new(at: usize, item: &'a PutItem<'_>) -> Result<Self, Error> {
        if item.group.len() > MAX_GROUP_LEN {
            let why = format!(
                "a group's name of {} bytes: at most {MAX_GROUP_LEN} bytes are allowed",
                item.group.len()
            );
            return Err(Error::definite("put", Code::InvalidParams, "this client", why));
        }
        let size = item.from.iter().map(|buffer| buffer.len() as u64).sum();
        let (key, group) = (item.key.clone(), item.group.clone());
        Ok(Self { from: &item.from, group, ..Self::sized(at, key, size)? })
    }

    /// Creates a put of an object of `size` bytes that are not at hand yet.
    pub(crate) fn sized(at: usize, key: Bytes, size: u64) -> Result<Self, Error> {
        check_key("put", &key)?;
        if size == 0 {
            let why = "a value of 0 bytes: at least 1 is needed";
            return Err(Error::definite("put", Code::InvalidParams, "this client", why));
        }
        Ok(Self {
            at,
            key,
            from: &[],
            group: Bytes::new(),
            size,
            put: PutId::random(),
            avoid: Vec::new(),
            again: false,
            failure: None,
            choosy: true,
            maybe_ended: false,
            spot: None,
        })
    }

    /// Returns the put to start in place of one that is over, under a new id.
    pub(crate) fn another(self) -> Self {
        Self { put: PutId::random(), again: true, spot: None, ..self }
    }
}

/// Reasons that the leader gave for the puts of a batch that it did not start.
#[derive(Clone, Debug)]
pub(crate) struct StartRefusal {
    /// Why there was no room for some; empty if there was.
    pub(crate) no_space: String,
    /// Bytes of the largest segment; 0 without stores.
    pub(crate) largest_segment: u64,
}

/// Writes by index of their grant: index of the put, number of its replica, and place.
pub(crate) type Writes = BTreeMap<usize, Vec<(usize, u32, Place)>>;

/// A put whose replicas are being written, with the results so far.
pub(crate) struct StartedPut<'a> {
    pub(crate) pending: PendingPut<'a>,
    pub(crate) replicas: Vec<u32>,
    /// Number of replicas that are still being written.
    pub(crate) untried: usize,
    pub(crate) failed: Vec<(u32, StoreId)>,
    /// The stores' receipts for the replicas, in the order of their numbers; zeros for those that have none.
    pub(crate) receipts: Vec<u8>,
    pub(crate) checksum: Option<u64>,
    pub(crate) why: Cow<'static, str>,
    /// Whether the deadline passed while a store was still receiving. Another store would have even less time.
    pub(crate) late: bool,
    /// A failure in this process, which would be the same with any store.
    pub(crate) here: Option<Error>,
}

/// The state in which a round left one put.
pub(crate) enum PutStep<'a> {
    Done(usize, Result<Put, Error>),
    Again(PendingPut<'a>),
}

impl<'a> StartedPut<'a> {
    /// Creates the state of a put that the leader started with `replicas` replicas, before any write. Replicas missing
    /// from `usable`, because this client can't interpret them, count as failed.
    pub(crate) fn new(pending: PendingPut<'a>, replicas: usize, usable: &[(u32, Place)]) -> Self {
        let usable: Vec<u32> = usable.iter().map(|(number, _)| *number).collect();
        let all = 0..u32::try_from(replicas).unwrap_or(0);
        let failed = all.filter(|number| !usable.contains(number)).map(|number| (number, StoreId::default()));
        Self {
            failed: failed.collect(),
            pending,
            untried: usable.len(),
            replicas: usable,
            receipts: Vec::new(),
            checksum: None,
            why: "no usable replica was placed".into(),
            late: false,
            here: None,
        }
    }

    /// Notes the receipt for replica `number`.
    pub(crate) fn note_receipt(&mut self, number: u32, receipt: Receipt) {
        let at = number as usize * Receipt::LEN;
        let end = at + Receipt::LEN;
        self.receipts.resize(self.receipts.len().max(end), 0);
        self.receipts[at..end].copy_from_slice(&receipt.to_bytes());
    }
}

impl<'a> PutStep<'a> {
    /// Returns the result of a finished put with its index in the batch.
    pub(crate) fn done(self) -> Option<(usize, Result<Put, Error>)> {
        match self {
            Self::Done(at, result) => Some((at, result)),
            Self::Again(_) => None,
        }
    }

    /// Decides about a put that the leader did not start. `avoided` are the stores that failed other calls.
    pub(crate) fn not_started(
        put: PendingPut<'a>,
        code: i32,
        avoided: &[StoreId],
        why: &StartRefusal,
    ) -> Self {
        let left_out = |store: &StoreId| put.choosy && !put.avoid.contains(store);
        match Code::try_from(code) {
            Ok(Code::ObjectAlreadyExists) => Self::Done(put.at, Ok(Put::AlreadyExists)),
            // Perhaps the only stores with room failed another call just now. They may be back, so try once with them.
            Ok(Code::NoAvailableHandle) if avoided.iter().any(left_out) => {
                Self::Again(PendingPut { choosy: false, ..put })
            }
            // The stores of its replicas were unmounted before the leader could answer. No master refuses a first start so for
            // another reason.
            Ok(Code::PutGone) if !put.again => Self::Again(put.another()),
            known => {
                let no_place = matches!(known, Ok(Code::NoAvailableHandle | Code::PutGone));
                let before = put.failure.filter(|_| no_place);
                let size = put.size;
                let refused = || match known {
                    Ok(code @ (Code::NoAvailableHandle | Code::TenantQuotaExceeded))
                        if !why.no_space.is_empty() =>
                    {
                        item_error_with("put start", code, &why.no_space)
                    }
                    Ok(code @ Code::PutGone) => {
                        item_error_with("put start", code, "the stores of its place were unmounted meanwhile")
                    }
                    Ok(Code::ObjectTooLarge) => {
                        let (size, most) = (ByteSize(size), ByteSize(why.largest_segment));
                        let why = format!(
                            "the object has {size}, and the largest segment of the pool {most}: split the object, or \
                             add a store with a larger segment"
                        );
                        item_error_with("put start", Code::ObjectTooLarge, &why)
                    }
                    Ok(Code::TenantNotRegistered) => item_error_with(
                        "put start",
                        Code::TenantNotRegistered,
                        "the cluster serves registered tenants only, or as many others as it can (65,536) have objects: \
                         register this one (mcctl tenants set)",
                    ),
                    Ok(Code::GroupFull) => item_error_with(
                        "put start",
                        Code::GroupFull,
                        "the group has 1,024 members, the most that it can have: use a group for each page",
                    ),
                    _ => item_error("put start", code),
                };
                Self::Done(put.at, Err(before.unwrap_or_else(refused)))
            }
        }
    }

    /// Decides about a put of which no replica was written: start it once more on other stores, under a new id because
    /// the client is revoking the old one.
    pub(crate) fn elsewhere(put: StartedPut<'a>, deadline: Instant) -> Self {
        let at = put.pending.at;
        if let Some(error) = put.here {
            return Self::Done(at, Err(error));
        }
        let why = format!("none of {} replicas was written: {}", put.replicas.len(), put.why);
        let error = Error::definite("put", Code::TransferFail, "the stores", why);
        if put.pending.again || put.late || Instant::now() >= deadline {
            return Self::Done(at, Err(error));
        }
        let avoid = put.failed.iter().map(|(_, store)| *store).filter(|store| *store != StoreId::default());
        Self::Again(PendingPut { avoid: avoid.collect(), failure: Some(error), ..put.pending.another() })
    }

    /// Fails every put with the same error.
    pub(crate) fn fail_all(puts: Vec<PendingPut<'a>>, error: &Error) -> Vec<Self> {
        puts.into_iter().map(|put| Self::Done(put.at, Err(error.clone()))).collect()
    }
}
