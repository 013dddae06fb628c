/// A row of equal slots, with a bit for each that is taken.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    taken: u64,
    /// Bytes of the slot that the run was cut from; zero when it was carved from free space.
    parent: u64,
    slots: u8,
}

impl Run {
    pub(crate) const MAX_SLOTS: u8 = 64;

    /// Creates a run with all slots free. `slots` is 1..=64.
    pub(super) fn new(slots: u64, parent: u64) -> Self {
        let slots = u8::try_from(slots).unwrap_or(Self::MAX_SLOTS).clamp(1, Self::MAX_SLOTS);
        Self { taken: 0, parent, slots }
    }

    pub(super) fn slots(&self) -> u8 {
        self.slots
    }

    pub(super) fn parent(&self) -> u64 {
        self.parent
    }

    pub(super) fn is_nested(&self) -> bool {
        self.parent > 0
    }

    /// Number of slots that are taken.
    pub(super) fn taken(&self) -> u32 {
        self.taken.count_ones()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken.count_ones() == u32::from(self.slots)
    }

    /// Takes the lowest free slot and returns its number.
    pub(super) fn take(&mut self) -> Option<u8> {
        let at = u8::try_from(self.taken.trailing_ones()).ok()?;
        (at < self.slots).then(|| {
            self.taken |= 1 << at;
            at
        })
    }

    /// Takes a given slot; returns false when it does not exist or is taken.
    pub(super) fn take_at(&mut self, at: u8) -> bool {
        let free = at < self.slots && self.taken >> at & 1 == 0;
        if free {
            self.taken |= 1 << at;
        }
        free
    }

    /// Frees a slot; returns false when it does not exist or is free.
    pub(super) fn put_back(&mut self, at: u8) -> bool {
        let taken = at < self.slots && self.taken >> at & 1 == 1;
        if taken {
            self.taken &= !(1 << at);
        }
        taken
    }
}
