//! Carries out the decisions of a [`Search`].

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mc_proto::v1;
use mc_types::HostPort;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

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

/// The tasks of a search.
#[derive(Default)]
struct Tasks {
    set: JoinSet<Done>,
    running: HashMap<Id, Task>,
    watches: BTreeMap<String, AbortHandle>,
}

impl Tasks {
    fn spawn(&mut self, task: Task, work: impl Future<Output = Done> + Send + 'static) {
        let watched = if let Task::Watch(address) = &task { Some(address.clone()) } else { None };
        let handle = self.set.spawn(work);
        self.running.insert(handle.id(), task);
        if let Some(address) = watched {
            self.watches.insert(address, handle);
        }
    }

    fn end_watch(&mut self, address: &str) {
        if let Some(watch) = self.watches.remove(address) {
            self.running.remove(&watch.id());
            watch.abort();
        }
    }

    /// Waits for the next task that ends; `None` as its result if it panicked, which is logged then.
    async fn next(&mut self) -> Option<(Task, Option<Done>)> {
        loop {
            let (id, done) = match self.set.join_next_with_id().await? {
                Ok((id, done)) => (id, Some(done)),
                Err(error) => (error.id(), None),
            };
            // A watch that was ended on purpose is not listed any more.
            if let Some(task) = self.running.remove(&id) {
                if let Task::Watch(address) = &task {
                    self.watches.remove(address);
                }
                return Some((task, done));
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
    let (updates, mut news) = mpsc::channel::<(String, WatchUpdate)>(64);
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
                    tasks.end_watch(&address);
                    let (channels, caller) = (channels.clone(), owner.caller());
                    let leader_only = !search.options().store_news;
                    let (from, updates) = (address.clone(), updates.clone());
                    tasks.spawn(Task::Watch(address), async move {
                        sleep(pause).await;
                        watch(&channels, from, caller, leader_only, limit, &updates).await
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
            Some((from, event)) = news.recv() => {
                search.heard(&from, true, leader.as_ref() == Some(&from));
                owner.watched(&from, event);
            }
            changed = owner.changed() => {
                if changed == Changed::List {
                    search.list_changed();
                }
            }
            Some(ended) = tasks.next(), if !tasks.set.is_empty() => match ended {
                (Task::Ask(address), done) => {
                    search.ended(&address);
                    let Some(Done::Asked { asked, answer, broken }) = done else { continue };
                    if let Some(channel) = broken {
                        channels.replace(&address, &channel);
                    }
                    if answer.as_ref().is_ok_and(|report| report.cluster.is_some()) {
                        search.heard(&address, false, leader.as_ref() == Some(&address));
                    }
                    owner.answered(&address, asked, answer);
                }
                (Task::Watch(address), done) => {
                    let (lasted, is_refused) = match done {
                        Some(Done::Watched { lasted, is_refused }) => (lasted, is_refused),
                        _ => (Duration::ZERO, false),
                    };
                    search.watch_ended(&address, lasted);
                    if !is_refused {
                        owner.watch_ended(&address);
                    }
                }
                (Task::Resolve, done) => {
                    if let Some(Done::Resolved { of, list }) = done {
                        owner.listed(&of, list);
                    }
                }
            },
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }
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
    from: String,
    caller: v1::Caller,
    leader_only: bool,
    limit: Duration,
    updates: &mpsc::Sender<(String, WatchUpdate)>,
) -> Done {
    let unopened = |is_refused| Done::Watched { lasted: Duration::ZERO, is_refused };
    let Ok(mut channel) = channels.get(&from) else { return unopened(false) };
    let opened = Instant::now();
    // A watch that ends or can't be opened leaves the connection to the calls that share it, and to questions, which tell
    // whether it is broken.
    let mut watch = match Watch::open(&mut channel.client, caller, leader_only, limit).await {
        Ok(watch) => watch,
        Err(error) => return unopened(error.answered()),
    };
    while let Ok(event) = watch.next().await {
        // It fails only when the search is over.
        if updates.send((from.clone(), event)).await.is_err() {
            break;
        }
    }
    Done::Watched { lasted: opened.elapsed(), is_refused: false }
}
