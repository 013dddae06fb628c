use std::time::Duration;

use crate::command::Pin;
use crate::key::IndexKey;
use crate::objects::Object;
use crate::state::State;

impl State {
    /// Delays the end of each object's soft pin that runs now, for a cluster whose time is about to jump ahead by `span`.
    pub fn delay_soft_pins(&mut self, span: Duration) {
        let delayed = |pin: Pin| Some(Pin::soft(pin.at(self.time).soft_until()?.after(span)));
        let pinned = self.objects.iter().filter_map(|object| {
            let pin = delayed(object.pin)?;
            Some((IndexKey::from_bytes(object.key)?, Object { pin, ..object.to_object() }))
        });
        let pinned: Vec<_> = pinned.collect();
        for (key, object) in pinned {
            self.objects.insert(&key, &object);
        }
    }
}
