use super::judged::Judged;
use super::tenants::key_of;
use crate::Seeded;
use crate::checker::{Action, Outcome};

impl Judged {
    /// Removes all objects of the tenant, or those whose keys match a pattern: an operation on each key that was ever put.
    ///
    /// All objects go at one moment. By a pattern they go bit by bit, and those that are put meanwhile may stay.
    pub(super) async fn clear(&self, random: &mut Seeded) {
        let digit = (random.below(2) == 0).then(|| random.below(10).to_string());
        let matches = |name: &str| match (key_of(&self.tenant, name), &digit) {
            (Some(key), Some(digit)) => key.starts_with("key-") && key.ends_with(digit),
            (key, None) => key.is_some(),
            (None, _) => false,
        };
        let before = self.puts.keys(matches);
        let call = self.call(before.keys().map(|name| (name.clone(), Action::Remove)).collect());
        let removed = match &digit {
            Some(digit) => self.client.remove_by_regex(&format!("^key-.*{digit}$"), true).await,
            None => self.client.remove_all(true).await,
        };
        let outcome = removed.map_or_else(|error| call.failed(&error), |_| Outcome::Cleared);
        let after = self.puts.keys(matches);
        call.answered(before, |_, (name, puts)| match outcome {
            Outcome::Cleared if digit.is_some() && (puts.is_none() || after.get(&name) != Some(&puts)) => {
                Outcome::Untold
            }
            outcome => outcome,
        });
    }
}
