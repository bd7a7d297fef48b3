//! Room for another link, where receives or queue pairs are used up.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farcall_core::origin::Origin;
use farcall_core::transport::LinkEnd;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::Shard;
use crate::link::LinkCore;
use crate::resources::{self, NoRoom};

/// How long a newcomer waits for room.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it waits for peers to give back what they were lent, before a link is ended.
const RECLAIM_PATIENCE: Duration = Duration::from_millis(250);

/// How long a peer may take to answer that it gives back nothing, when others wait.
const RECLAIM_LIMIT: Duration = Duration::from_secs(3);

/// The links of an endpoint that make room for others, and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Room {
    counts: Mutex<Counts>,
    /// Told when a link's queue pair has been destroyed.
    destroyed: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// The links that could not be made for lack of room, and are tried again.
    waiting: usize,
    /// For how many of them a link was ended, by host.
    granted: HashMap<Origin, usize>,
    /// The links that were ended to make room, and whose queue pairs are not destroyed yet.
    leaving: usize,
    /// The queue pairs that were destroyed so far.
    destroyed: u64,
}

/// A link with this host that waits for room, until this is dropped.
struct Waiting {
    room: Arc<Room>,
    host: Origin,
    /// How many links were ended for it.
    granted: usize,
}

impl Room {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(self: &Arc<Self>, host: Origin) -> Waiting {
        self.counts().waiting += 1;
        Waiting { room: Arc::clone(self), host, granted: 0 }
    }

    /// Notes that the queue pair of this link has been destroyed.
    pub(super) fn note_destroyed(&self, link: &LinkCore) {
        let mut counts = self.counts();
        counts.leaving -= usize::from(link.is_displaced());
        counts.destroyed += 1;
        drop(counts);
        self.destroyed.notify_waiters();
    }

    /// Notes that the endpoint is lost, so that nobody waits any more.
    pub(super) fn note_lost(&self) {
        self.counts().destroyed += 1;
        self.destroyed.notify_waiters();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut counts = self.room.counts();
        counts.waiting -= 1;
        if let Some(granted) = counts.granted.get_mut(&self.host) {
            *granted -= self.granted;
            if *granted == 0 {
                counts.granted.remove(&self.host);
            }
        }
    }
}

impl Shard {
    /// Has `create` make a part of a link with this host, for which there may be no room. Then peers give back what they were
    /// lent, and the host that has most links makes room for one that has at least two fewer.
    ///
    /// `create` is called until it succeeds, or no room is to be expected.
    pub(super) async fn admit<T, E, F>(
        &self,
        host: Origin,
        create: impl Fn() -> F,
    ) -> Result<Result<T, NoRoom>, E>
    where
        F: Future<Output = Result<Result<T, NoRoom>, E>>,
    {
        let began = tokio::time::Instant::now();
        let mut waiting = None;
        loop {
            let (freed, destroyed) = (self.resources.memory.freed(), self.room.destroyed.notified());
            let before = self.room.counts().destroyed;
            let decided = create().await?;
            let Err(full) = &decided else { return Ok(decided) };
            let waiting = waiting.get_or_insert_with(|| self.room.wait(host));
            let is_memory = matches!(full, NoRoom::Receives(_));
            let (is_reclaiming, waited) = (is_memory && self.reclaim(), began.elapsed());
            let is_soon = is_reclaiming && waited < RECLAIM_PATIENCE;
            if waited >= PATIENCE || !is_soon && !self.make_place(waiting, before) && !is_reclaiming {
                return Ok(decided);
            }
            let news = async {
                tokio::select! {
                    // The receives that an attempt without a queue pair has given back are no news.
                    () = freed, if is_memory => {}
                    () = destroyed => {}
                }
            };
            // Whether there is any, or it is time for the next means.
            let until = began + if is_soon { RECLAIM_PATIENCE } else { PATIENCE };
            let _ = timeout_at(until, news).await;
        }
    }

    /// Asks peers to give back what they were lent, idle ones first. False: nobody has anything.
    fn reclaim(&self) -> bool {
        let links: Vec<_> = self.links().values().cloned().collect();
        let now = Instant::now();
        let mut asked = 0;
        for idle in [true, false] {
            for link in &links {
                // Several newcomers may share what comes back; each asks for a little more than it needs.
                if asked < 2 * resources::BASE {
                    asked += link.reclaim(idle, now);
                }
            }
        }
        let mut awaited = asked > 0;
        for link in &links {
            match link.reclaimed_at().map(|then| now - then) {
                // Its receives are free when its queue pair is gone.
                Some(waited) if waited > RECLAIM_LIMIT => {
                    let why = format!("{}: the peer does not answer when asked for credits", link.name());
                    self.resources.mailbox.failed(link.number(), LinkEnd::failed(why));
                    awaited = true;
                }
                Some(_) => awaited = true,
                None => {}
            }
        }
        awaited
    }

    /// Ends a link to make room for one that waits, unless as many are leaving as wait. `before`: how many had been destroyed when there was
    /// no room. False: no more have been since, none is leaving, and no host has enough links to give one up.
    fn make_place(&self, waiting: &mut Waiting, before: u64) -> bool {
        let links = self.links();
        let mut counts = self.room.counts();
        let host = waiting.host;
        let granted = counts.granted.get(&host).copied().unwrap_or(0);
        if counts.leaving < counts.waiting
            && let Some(link) = newest_of_most(&links, host, granted)
        {
            counts.leaving += 1;
            *counts.granted.entry(host).or_default() += 1;
            waiting.granted += 1;
            link.displace();
            let why = format!(
                "{}: most RDMA connections are with this host, and another host needs room for one; rdma.connections and \
                 rdma.memory bound them",
                link.name()
            );
            self.resources.mailbox.failed(link.number(), LinkEnd::failed(why));
        }
        counts.leaving > 0 || counts.destroyed != before
    }
}

/// Returns the newest link with the host that has most, if that has at least two more than this host, which was `granted` so many more. Links
/// that are being connected come last: they can't be ended before that is done.
fn newest_of_most(
    links: &BTreeMap<u32, Arc<LinkCore>>,
    host: Origin,
    granted: usize,
) -> Option<&Arc<LinkCore>> {
    let mut of_hosts: HashMap<Origin, Vec<&Arc<LinkCore>>> = HashMap::new();
    for link in links.values().filter(|link| !link.is_displaced()) {
        of_hosts.entry(link.peer_host()).or_default().push(link);
    }
    let of_this = of_hosts.get(&host).map_or(0, Vec::len) + granted;
    // Links without addresses keep their places: this machine or the program itself made them.
    let most = of_hosts.into_iter().filter(|(host, _)| *host != Origin::NONE).map(|(_, links)| links);
    let most = most.max_by_key(Vec::len).filter(|most| most.len() >= of_this + 2)?;
    most.into_iter().max_by_key(|link| (!link.is_connecting(), link.since()))
}
