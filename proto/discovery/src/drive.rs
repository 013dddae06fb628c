//! Carries out the decisions of a [`Search`].

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use mc_proto::v1;
use mc_types::HostPort;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt as _, StreamMap};

use crate::search::{Action, Search};
use crate::{
    Channels, ClusterReport, HelloError, LastKnown, Listed, MasterChannel, Watch, WatchUpdate, hello,
};

/// Judges what masters say, for a search.
pub trait SearchOwner: Send {
    /// Returns what is known at `now`.
    fn situation(&mut self, now: Instant) -> crate::Situation;

    /// Returns the caller that a watch names.
    fn caller(&self) -> v1::Caller;

    /// Returns the list of masters as it was given.
    fn list(&self) -> Vec<HostPort>;

    /// Takes in the addresses of the list `of`, which may have changed meanwhile.
    fn listed(&mut self, of: &[HostPort], list: Listed);

    /// Takes in a master's answer to a question that was sent at `asked`.
    fn answered(&mut self, from: &str, asked: Instant, answer: Result<ClusterReport, HelloError>);

    /// Takes in news from a watch.
    fn watched(&mut self, from: &str, update: WatchUpdate);

    /// Takes in that a watch has ended, or got no answer when it was opened.
    fn watch_ended(&mut self, from: &str);

    /// Waits until something has changed besides what the search itself brings. Nothing is lost if it is dropped.
    fn changed(&mut self) -> impl Future<Output = Changed> + Send;
}

/// Part of the situation that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The list of masters.
    List,
    /// Something else.
    Situation,
}

/// A background task.
enum Task {
    Ask(String),
    Watch(String),
    Resolve,
}

/// Result of a task.
enum Done {
    Asked {
        asked: Instant,
        answer: Result<ClusterReport, HelloError>,
        /// The connection, if it is broken.
        broken: Option<MasterChannel>,
    },
    Watched {
        /// How long the watch was open.
        lasted: Duration,
        /// Whether the master answered that it opens none.
        is_refused: bool,
    },
    Resolved {
        of: Vec<HostPort>,
        list: Listed,
    },
}

/// Updates of one watch that may wait until the search takes them. More wait in the connection.
const WAITING_UPDATES: usize = 16;

/// The tasks of a search.
#[derive(Default)]
struct Tasks {
    set: JoinSet<Done>,
    running: HashMap<Id, Task>,
    watches: BTreeMap<String, AbortHandle>,
    /// Updates of the watches, by master; those of a watch that ended by itself, too, until they are taken.
    updates: StreamMap<String, ReceiverStream<WatchUpdate>>,
}

/// News from the tasks of a search.
enum TaskEvent {
    /// A watch of this master brought an update.
    Updated(String, WatchUpdate),
    /// A task ended; `None` as its result if it panicked, which is logged then.
    Ended(Task, Option<Done>),
}

impl Tasks {
    fn spawn(&mut self, task: Task, work: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        let handle = self.set.spawn(work);
        self.running.insert(handle.id(), task);
        handle
    }

    /// Opens a watch, in place of the one of this master if there is one. `work` sends its updates to what it is called with.
    fn open_watch<W: Future<Output = Done> + Send + 'static>(
        &mut self,
        address: String,
        work: impl FnOnce(mpsc::Sender<WatchUpdate>) -> W,
    ) {
        self.end_watch(&address);
        let (sender, updates) = mpsc::channel(WAITING_UPDATES);
        let handle = self.spawn(Task::Watch(address.clone()), work(sender));
        self.updates.insert(address.clone(), ReceiverStream::new(updates));
        self.watches.insert(address, handle);
    }

    /// Ends a watch, with the updates that nobody has taken yet. Taken later, they would make the next watch of the master
    /// pass for one that is open, and bring a former leader's word on stores after that of its successor. Nothing is lost:
    /// the first update of each watch is the whole state.
    fn end_watch(&mut self, address: &str) {
        self.updates.remove(address);
        if let Some(watch) = self.watches.remove(address) {
            self.running.remove(&watch.id());
            watch.abort();
        }
    }

    /// Waits for the next update, or for the next task that ends. Nothing is lost if it is dropped.
    async fn next(&mut self) -> Option<TaskEvent> {
        loop {
            let ended = tokio::select! {
                Some((from, update)) = self.updates.next() => return Some(TaskEvent::Updated(from, update)),
                Some(ended) = self.set.join_next_with_id() => ended,
                else => return None,
            };
            let (id, done) = match ended {
                Ok((id, done)) => (id, Some(done)),
                Err(error) => (error.id(), None),
            };
            // A watch that was ended on purpose is not listed any more.
            if let Some(task) = self.running.remove(&id) {
                if let Task::Watch(address) = &task {
                    self.watches.remove(address);
                }
                return Some(TaskEvent::Ended(task, done));
            }
        }
    }
}

/// Runs a search for as long as it is polled. `last_known` has the records of the list's names.
pub async fn drive(
    mut owner: impl SearchOwner,
    channels: Arc<Channels>,
    last_known: Arc<LastKnown>,
    mut search: Search,
) -> Infallible {
    let mut tasks = Tasks::default();
    loop {
        let (leader, until) = loop {
            let now = Instant::now();
            let situation = owner.situation(now);
            match search.next(now, &situation) {
                Action::Ask { address, limit } => {
                    let ask = ask(channels.clone(), address.clone(), search.options().software, limit);
                    tasks.spawn(Task::Ask(address), ask);
                }
                Action::Watch { address, pause, limit } => {
                    let (channels, caller) = (channels.clone(), owner.caller());
                    let leader_only = !search.options().store_news;
                    tasks.open_watch(address.clone(), |updates| async move {
                        sleep(pause).await;
                        watch(&channels, &address, caller, leader_only, limit, updates).await
                    });
                }
                Action::Unwatch(address) => tasks.end_watch(&address),
                Action::Resolve => {
                    let (of, last) = (owner.list(), last_known.clone());
                    tasks.spawn(Task::Resolve, async move {
                        let list = Listed::resolve(&of, &last).await;
                        Done::Resolved { of, list }
                    });
                }
                Action::Wait(until) => break (situation.leader, until),
            }
        };
        tokio::select! {
            changed = owner.changed() => {
                if changed == Changed::List {
                    search.list_changed();
                }
            }
            Some(event) = tasks.next() => match event {
                TaskEvent::Updated(from, update) => {
                    search.heard(&from, true, leader.as_ref() == Some(&from));
                    judge(|| owner.watched(&from, update));
                }
                TaskEvent::Ended(Task::Ask(address), done) => {
                    search.ended(&address);
                    let Some(Done::Asked { asked, answer, broken }) = done else { continue };
                    if let Some(channel) = broken {
                        channels.replace(&address, &channel);
                    }
                    if answer.as_ref().is_ok_and(|report| report.cluster.is_some()) {
                        search.heard(&address, false, leader.as_ref() == Some(&address));
                    }
                    judge(|| owner.answered(&address, asked, answer));
                }
                TaskEvent::Ended(Task::Watch(address), done) => {
                    let (lasted, is_refused) = match done {
                        Some(Done::Watched { lasted, is_refused }) => (lasted, is_refused),
                        _ => (Duration::ZERO, false),
                    };
                    search.watch_ended(&address, lasted);
                    if !is_refused {
                        judge(|| owner.watch_ended(&address));
                    }
                }
                TaskEvent::Ended(Task::Resolve, done) => {
                    if let Some(Done::Resolved { of, list }) = done {
                        judge(|| owner.listed(&of, list));
                    }
                }
            },
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }
}

/// Lets the owner judge one message. A panic loses that message and not the search, without which a client closes and a
/// store follows no other leader.
///
/// The owner may have judged only half of the message. Most of what it knows of a master is replaced by the next message; a
/// change of the cluster is not told twice, so an owner acts on it last.
fn judge(judgement: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(judgement));
}

/// Asks a master who leads.
async fn ask(channels: Arc<Channels>, address: String, software: &'static str, limit: Duration) -> Done {
    let asked = Instant::now();
    match channels.get(&address) {
        Ok(mut channel) => {
            let answer = hello(&mut channel.client, software, limit).await;
            // The connection may be half open: the next question uses another one.
            let is_broken = answer.as_ref().is_err_and(|error| !error.answered());
            Done::Asked { asked, answer, broken: is_broken.then_some(channel) }
        }
        Err(error) => {
            let answer = Err(HelloError::Silent(format!("not an address: {error}")));
            Done::Asked { asked, answer, broken: None }
        }
    }
}

/// Runs one watch from its opening to its end.
async fn watch(
    channels: &Channels,
    from: &str,
    caller: v1::Caller,
    leader_only: bool,
    limit: Duration,
    updates: mpsc::Sender<WatchUpdate>,
) -> Done {
    let unopened = |is_refused| Done::Watched { lasted: Duration::ZERO, is_refused };
    let Ok(mut channel) = channels.get(from) else { return unopened(false) };
    let opened = Instant::now();
    // A watch that ends or can't be opened leaves the connection to the calls that share it: a master that is slow to open a
    // watch may answer those, and would have one more connection to accept. If the connection is dead, a question or the
    // keep-alive finds out, and the next try of a second watch goes to another master.
    let mut watch = match Watch::open(&mut channel.client, caller, leader_only, limit).await {
        Ok(watch) => watch,
        Err(error) => return unopened(error.answered()),
    };
    while let Ok(event) = watch.next().await {
        // It fails only when this watch is ended.
        if updates.send(event).await.is_err() {
            break;
        }
    }
    Done::Watched { lasted: opened.elapsed(), is_refused: false }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mc_net::{ChannelOptions, TcpNetwork};

    use super::*;
    use crate::{Phase, SearchOptions, Situation};

    const MASTER: &str = "127.0.0.1:1";

    /// Panics when it judges its first answer, and counts the others.
    struct PanicsAtFirst {
        answers: usize,
        judged: mpsc::Sender<usize>,
    }

    impl SearchOwner for PanicsAtFirst {
        fn situation(&mut self, _: Instant) -> Situation {
            Situation {
                masters: Arc::new(BTreeSet::from([MASTER.to_owned()])),
                leader: None,
                lost: None,
                phase: Phase::Searching,
                spread: Duration::ZERO,
                may_watch: false,
                until: None,
            }
        }

        fn caller(&self) -> v1::Caller {
            v1::Caller::default()
        }

        fn list(&self) -> Vec<HostPort> {
            Vec::new()
        }

        fn listed(&mut self, _: &[HostPort], _: Listed) {}

        fn answered(&mut self, _: &str, _: Instant, _: Result<ClusterReport, HelloError>) {
            self.answers += 1;
            assert!(self.answers > 1, "planted");
            let _ = self.judged.try_send(self.answers);
        }

        fn watched(&mut self, _: &str, _: WatchUpdate) {}

        fn watch_ended(&mut self, _: &str) {}

        async fn changed(&mut self) -> Changed {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_panic_while_an_answer_is_judged_does_not_end_the_search() {
        let options = SearchOptions {
            software: "test",
            pauses: (Duration::from_millis(1), Duration::from_millis(1)),
            head_start: Duration::ZERO,
            answer: Duration::from_secs(1),
            leader_answer: Duration::from_secs(1),
            resolve: Duration::from_secs(3600),
            store_news: false,
        };
        let (judged, mut is_judged) = mpsc::channel(1);
        let owner = PanicsAtFirst { answers: 0, judged };
        let channels = Arc::new(Channels::new(TcpNetwork::shared(), ChannelOptions::default()));
        let search = Search::new(options, Instant::now(), None);
        tokio::spawn(drive(owner, channels, Arc::default(), search));
        assert_eq!(is_judged.recv().await, Some(2), "the search goes on");
    }

    fn update() -> WatchUpdate {
        crate::read_update(v1::WatchEvent::default())
    }

    /// Opens a watch that brings one update and ends if `ends`. Returns once the update waits to be taken.
    async fn watch_with_update(tasks: &mut Tasks, ends: bool) {
        let (sent, is_sent) = tokio::sync::oneshot::channel();
        tasks.open_watch("a".to_owned(), |updates| async move {
            updates.send(update()).await.unwrap();
            sent.send(()).unwrap();
            if !ends {
                std::future::pending::<()>().await;
            }
            Done::Watched { lasted: Duration::ZERO, is_refused: false }
        });
        is_sent.await.unwrap();
    }

    #[tokio::test]
    async fn an_update_of_a_watch_that_was_ended_is_not_taken() {
        let mut tasks = Tasks::default();
        watch_with_update(&mut tasks, false).await;
        tasks.end_watch("a");
        assert!(tasks.next().await.is_none());
        // Nor does it pass for an update of the next watch.
        watch_with_update(&mut tasks, false).await;
        tasks.open_watch("a".to_owned(), |_| async {
            Done::Watched { lasted: Duration::ZERO, is_refused: true }
        });
        assert!(matches!(tasks.next().await, Some(TaskEvent::Ended(Task::Watch(_), Some(_)))));
        assert!(tasks.next().await.is_none());
    }

    #[tokio::test]
    async fn the_last_update_of_a_watch_that_ended_by_itself_is_taken() {
        let mut tasks = Tasks::default();
        watch_with_update(&mut tasks, true).await;
        let (mut updates, mut ends) = (0, 0);
        while let Some(event) = tasks.next().await {
            match event {
                TaskEvent::Updated(..) => updates += 1,
                TaskEvent::Ended(..) => ends += 1,
            }
        }
        assert_eq!((updates, ends), (1, 1));
    }
}
