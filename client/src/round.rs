//! A round of puts: its input, and what it leaves of each put.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use mc_types::{Code, PutId, StoreId};
use tokio::time::Instant;

use crate::core::{check_key, item_error};
use crate::embedded::Spot;
use crate::placement::Place;
use crate::{Error, Put, PutFrom};

/// A put on its way.
#[derive(Clone, Debug)]
pub(crate) struct Pending<'a> {
    /// Place in the batch.
    pub(crate) at: usize,
    pub(crate) key: Bytes,
    pub(crate) slices: &'a [&'a [u8]],
    pub(crate) size: u64,
    pub(crate) put: PutId,
    /// Stores that failed this put.
    pub(crate) avoid: Vec<StoreId>,
    /// It has been started again once; that is enough.
    pub(crate) again: bool,
    /// Why it was started again on other stores.
    pub(crate) failure: Option<Error>,
    /// Stores that failed other calls are asked to be left out, too.
    pub(crate) choosy: bool,
    /// Where in this process's own store it has been written, if it was.
    pub(crate) spot: Option<Spot>,
}

impl<'a> Pending<'a> {
    /// A put that has not been started. `key` is the item's.
    pub(crate) fn new(at: usize, key: Bytes, item: &PutFrom<'a>) -> Result<Self, Error> {
        check_key("put", &key)?;
        let size: u64 = item.slices.iter().map(|slice| slice.len() as u64).sum();
        if size == 0 {
            let why = "a value of 0 bytes: at least 1 is needed";
            return Err(Error::definite("put", Code::InvalidParams, "this client", why));
        }
        Ok(Self {
            at,
            key,
            slices: item.slices,
            size,
            put: PutId::random(),
            avoid: Vec::new(),
            again: false,
            failure: None,
            choosy: true,
            spot: None,
        })
    }
}

/// The writes under each grant: which put, which of its replicas, and where that is.
pub(crate) type Writes = BTreeMap<usize, Vec<(usize, u32, Place)>>;

/// A put whose bytes are being written: to which replicas, and how that went.
pub(crate) struct Written<'a> {
    pub(crate) pending: Pending<'a>,
    pub(crate) replicas: Vec<u32>,
    /// How many of them are still being written.
    pub(crate) untried: usize,
    pub(crate) failed: Vec<(u32, StoreId)>,
    pub(crate) checksum: Option<u64>,
    pub(crate) why: Cow<'static, str>,
    /// A store was still at it when the time for writes was over: another one would have less.
    pub(crate) late: bool,
}

/// The state in which a round left one put.
pub(crate) enum Round<'a> {
    Done(usize, Result<Put, Error>),
    Again(Pending<'a>),
}

impl<'a> Written<'a> {
    /// A put that was started with so many replicas, before anything is written. Those that this client cannot make
    /// sense of, and so has no place for, count as not written.
    pub(crate) fn new(pending: Pending<'a>, replicas: usize, usable: &[(u32, Place)]) -> Self {
        let usable: Vec<u32> = usable.iter().map(|(number, _)| *number).collect();
        let all = 0..u32::try_from(replicas).unwrap_or(0);
        let failed = all.filter(|number| !usable.contains(number)).map(|number| (number, StoreId::default()));
        Self {
            failed: failed.collect(),
            pending,
            untried: usable.len(),
            replicas: usable,
            checksum: None,
            why: "no usable replica was placed".into(),
            late: false,
        }
    }
}

impl<'a> Round<'a> {
    /// The result of a put that is done, with its place in the batch.
    pub(crate) fn done(self) -> Option<(usize, Result<Put, Error>)> {
        match self {
            Self::Done(at, result) => Some((at, result)),
            Self::Again(_) => None,
        }
    }

    /// A put that the leader did not start. `avoiding` says whether it was asked to leave stores out.
    pub(crate) fn not_started(put: Pending<'a>, code: i32, avoiding: bool) -> Self {
        match Code::try_from(code) {
            Ok(Code::ObjectAlreadyExists) => Self::Done(put.at, Ok(Put::AlreadyExists)),
            // The only stores with room may be ones that failed somebody else just now: they may be back.
            Ok(Code::NoAvailableHandle) if put.choosy && put.avoid.is_empty() && avoiding => {
                Self::Again(Pending { choosy: false, ..put })
            }
            known => {
                let before = put.failure.filter(|_| known == Ok(Code::NoAvailableHandle));
                Self::Done(put.at, Err(before.unwrap_or_else(|| item_error("put start", code))))
            }
        }
    }

    /// A put that no replica was written of: once more on other stores, under a new id since this one is being revoked.
    pub(crate) fn elsewhere(put: Written<'a>, deadline: Instant) -> Self {
        let at = put.pending.at;
        let why = format!("none of {} replicas was written: {}", put.replicas.len(), put.why);
        let error = Error::definite("put", Code::TransferFail, "the stores", why);
        if put.pending.again || put.late || Instant::now() >= deadline {
            return Self::Done(at, Err(error));
        }
        let avoid = put.failed.iter().map(|(_, store)| *store).filter(|store| *store != StoreId::default());
        Self::Again(Pending {
            put: PutId::random(),
            again: true,
            avoid: avoid.collect(),
            failure: Some(error),
            ..put.pending
        })
    }

    /// The same error for all.
    pub(crate) fn fail_all(puts: Vec<Pending<'a>>, error: &Error) -> Vec<Self> {
        puts.into_iter().map(|put| Self::Done(put.at, Err(error.clone()))).collect()
    }
}
