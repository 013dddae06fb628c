use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tokio::time::Instant;

use crate::room::{Place, Standing};

/// Time that a guest that was refused has to read the answer.
const DISMISSED_WITHIN: Duration = Duration::from_millis(250);

/// Time that a connection has left, according to its place.
pub(crate) struct TimeLimit {
    pub(crate) place: Arc<Place>,
    end: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl TimeLimit {
    pub(crate) fn new(place: Place, time: Option<Duration>) -> Self {
        Self { place: Arc::new(place), end: time.map(|time| Box::pin(tokio::time::sleep(time))) }
    }

    /// Whether the time is over. If not, the task is woken when it is.
    pub(crate) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(end) = &mut self.end else { return false };
        match self.place.standing() {
            Standing::Vouched => {
                self.end = None;
                return false;
            }
            Standing::Dismissed => {
                let soon = Instant::now() + DISMISSED_WITHIN;
                if end.deadline() > soon {
                    end.as_mut().reset(soon);
                }
            }
            Standing::Guest | Standing::Settled => {}
        }
        end.as_mut().poll(cx).is_ready()
    }
}
