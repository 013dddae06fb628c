use crate::Seeded;

/// Weights with which the ways of calling are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Put if absent.
    pub put: u64,
    /// Put, and replace an existing object.
    pub upsert: u64,
    /// Upsert of one of a few objects that is pinned hard or softly, keeps its pin, or loses it.
    pub pin: u64,
    /// Get.
    pub get: u64,
    /// Exist.
    pub exist: u64,
    /// Remove, forced, so that leases do not delay it.
    pub remove: u64,
    /// Many of the calls above at once, on a runtime that ends with them.
    pub burst: u64,
    /// Put, get, exist or remove of many keys in one call.
    pub batch: u64,
    /// Reads of parts of objects.
    pub range: u64,
    /// An object that is put, or read, in many transfers.
    pub session: u64,
    /// Put of the members of a group, or get of them, in one call. For runs in which every store lives: a group is judged at the
    /// end, and has all its members or none.
    pub group: u64,
    /// Removal of all objects of the tenant, or of those whose keys match a pattern.
    pub clear: u64,
}

/// A way of calling the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Single(Single),
    Burst,
    Batch,
    Range,
    Session,
    Group,
    Clear,
}

/// A call with one key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Single {
    Put,
    Upsert,
    Pin,
    Get,
    Exist,
    Remove,
}

impl Mix {
    /// Nothing.
    pub const NONE: Self = Self {
        put: 0,
        upsert: 0,
        pin: 0,
        get: 0,
        exist: 0,
        remove: 0,
        burst: 0,
        batch: 0,
        range: 0,
        session: 0,
        group: 0,
        clear: 0,
    };
    /// All single calls, with many reads.
    pub const ALL: Self = Self { put: 4, upsert: 2, get: 8, exist: 1, remove: 1, ..Self::NONE };
    /// No removes and no upserts: an acknowledged value must stay.
    pub const GROWING: Self = Self { put: 6, get: 8, exist: 1, ..Self::NONE };
    /// All ways in which engines call.
    pub const ENGINES: Self = Self {
        put: 40,
        upsert: 20,
        pin: 5,
        get: 80,
        exist: 10,
        remove: 10,
        burst: 2,
        batch: 30,
        range: 30,
        session: 30,
        group: 10,
        clear: 1,
    };

    /// Draws a way of calling.
    pub(super) fn draw(&self, random: &mut Seeded) -> Way {
        let rest = [
            (self.burst, Way::Burst),
            (self.batch, Way::Batch),
            (self.range, Way::Range),
            (self.session, Way::Session),
            (self.group, Way::Group),
            (self.clear, Way::Clear),
        ];
        let single = self.single().map(|(weight, single)| (weight, Way::Single(single)));
        drawn(single.into_iter().chain(rest), random)
    }

    /// Draws a call with one key.
    pub(super) fn draw_single(&self, random: &mut Seeded) -> Single {
        drawn(self.single().into_iter(), random)
    }

    fn single(&self) -> [(u64, Single); 6] {
        [
            (self.put, Single::Put),
            (self.upsert, Single::Upsert),
            (self.pin, Single::Pin),
            (self.get, Single::Get),
            (self.exist, Single::Exist),
            (self.remove, Single::Remove),
        ]
    }
}

fn drawn<T>(mut weighted: impl Iterator<Item = (u64, T)> + Clone, random: &mut Seeded) -> T {
    let mut left = random.below(weighted.clone().map(|(weight, _)| weight).sum());
    let hit = weighted.find(|(weight, _)| {
        let hit = left < *weight;
        left = left.saturating_sub(*weight);
        hit
    });
    hit.expect("a mix with a weight above 0").1
}
