use std::time::Duration;

/// Waits that double from `first` to `most`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.most);
        wait
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_start_over_at_reset() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(20), ms(200));
        assert_eq!([(); 6].map(|()| backoff.next()), [20, 40, 80, 160, 200, 200].map(ms));
        backoff.reset();
        assert_eq!(backoff.next(), ms(20));
    }
}
