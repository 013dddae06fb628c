//! Entries of the table of keys and values, which masters serve over HTTP.

use mc_tests::checker::{Action, Digest, Outcome};
use tokio::time::timeout;

use crate::client::Client;
use crate::http::{Request, exchange};

impl Client {
    /// Changes an entry: sets it twice as often as it deletes it.
    pub(crate) async fn change_entry(&mut self, key: &str) {
        let started = self.oracle.now();
        let value = self.rng.bits();
        let (action, answered) = match self.rng.below(3) {
            0 => (Action::Remove, self.call("DELETE", key, "").await),
            _ => (Action::Upsert(Digest(value)), self.call("PUT", key, &format!("{value:016x}")).await),
        };
        let outcome = match (answered, action) {
            (Some((200, _)), Action::Remove) => Outcome::Removed,
            (Some((404, _)), Action::Remove) => Outcome::NothingToRemove,
            (Some((200, _)), _) => Outcome::Stored,
            // A leader that is unsure of its majority says so with the same code as one that did nothing.
            _ => Outcome::Unknown,
        };
        self.oracle.tally(|tally| tally.entries_changed += usize::from(outcome != Outcome::Unknown));
        self.record(key, action, outcome, started);
    }

    /// True when it was answered.
    pub(crate) async fn get_entry(&mut self, key: &str) -> bool {
        let started = self.oracle.now();
        let outcome = match self.call("GET", key, "").await {
            Some((200, body)) => {
                Outcome::Value(Digest(u64::from_str_radix(&body, 16).expect("a value that was set")))
            }
            Some((404, _)) => Outcome::Miss,
            _ => {
                self.caller.elsewhere().await;
                return false;
            }
        };
        self.record(key, Action::Get, outcome, started);
        true
    }

    /// Returns the code and body of a master's answer; `None` when there is none in time.
    async fn call(&mut self, method: &str, key: &str, body: &str) -> Option<(u16, String)> {
        let path = format!("/metadata?key={key}");
        let request = Request { from: self.host, to: self.caller.at, method, path: &path, body };
        timeout(self.caller.patience, exchange(&self.net, request)).await.ok()?.ok()
    }
}
