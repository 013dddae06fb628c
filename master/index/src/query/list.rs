//! Listing of keys, page by page.

use mc_types::PutId;

use crate::key::IndexKey;
use crate::state::State;

/// Maximum number of objects and parts of the index that one page visits. The index is locked against changes
/// meanwhile.
const VISITS_MAX: usize = 64 << 10;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedObject {
    /// Its key.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// The put that made it.
    pub version: PutId,
    /// Position after this object, from which a listing continues. Objects with the same position are always listed
    /// together.
    pub after: u64,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The objects, in no particular order.
    pub objects: Vec<ListedObject>,
    /// Position at which the next page begins; `None` at the end.
    pub next: Option<u64>,
}

impl State {
    /// Lists visible objects of a tenant whose keys begin with `prefix`, from a position on; 0 is the start.
    ///
    /// A page ends after `keys` keys or `bytes` bytes of keys, or when it has visited enough of the index. It may be
    /// empty although more pages follow. An object that exists from the first page to the last is listed exactly once.
    #[must_use]
    pub fn list(&self, tenant: &str, prefix: &[u8], from: u64, keys: usize, bytes: usize) -> KeyPage {
        let mut page = KeyPage::default();
        let Some(start) = IndexKey::prefix(tenant, prefix) else { return page };
        let (mut visits, mut listed, mut before) = (0, 0, from);
        for (after, object) in self.objects.iter_from(from) {
            // Objects that share a position are on one page.
            if after != before && (page.objects.len() >= keys || listed >= bytes || visits >= VISITS_MAX) {
                page.next = Some(before);
                return page;
            }
            (visits, before) = (visits + 1, after);
            let Some(object) = object else { continue };
            if object.key.starts_with(&start) && self.is_live(object) {
                let key = object.key[1 + tenant.len()..].to_vec();
                listed += key.len();
                page.objects.push(ListedObject { key, size: object.size, version: object.version, after });
            }
        }
        page
    }
}
