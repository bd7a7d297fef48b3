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
    /// The links that were ended to make room, and whose queue pairs are not destroyed yet.
    leaving: usize,
    /// The queue pairs that were destroyed so far.
    destroyed: u64,
}

/// A link that waits for room, until this is dropped.
struct Waiting(Arc<Room>);

impl Room {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(self: &Arc<Self>) -> Waiting {
        self.counts().waiting += 1;
        Waiting(Arc::clone(self))
    }

    /// The queue pair of this link has been destroyed.
    pub(super) fn is_free_of(&self, link: &LinkCore) {
        let mut counts = self.counts();
        counts.leaving -= usize::from(link.is_displaced());
        counts.destroyed += 1;
        drop(counts);
        self.destroyed.notify_waiters();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.counts().waiting -= 1;
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
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut waiting = None;
        loop {
            let (freed, destroyed) = (self.resources.memory.freed(), self.room.destroyed.notified());
            let before = self.room.counts().destroyed;
            let decided = create().await?;
            let Err(full) = &decided else { return Ok(decided) };
            waiting.get_or_insert_with(|| self.room.wait());
            let is_near = match full {
                NoRoom::Receives(_) if self.reclaim() || self.make_place(host, before) => {
                    let either = async {
                        tokio::select! {
                            () = freed => {}
                            () = destroyed => {}
                        }
                    };
                    timeout_at(deadline, either).await.is_ok()
                }
                // The receives that the attempt itself has given back are no news.
                NoRoom::Completions if self.make_place(host, before) => {
                    timeout_at(deadline, destroyed).await.is_ok()
                }
                _ => false,
            };
            if !is_near {
                return Ok(decided);
            }
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

    /// Ends a link to make room for one with this host, unless as many are leaving as wait. `before`: how many had been destroyed when there
    /// was no room. False: no more have been since, none is leaving, and no host has enough links to give one up.
    fn make_place(&self, host: Origin, before: u64) -> bool {
        let links = self.links();
        let mut counts = self.room.counts();
        if counts.leaving < counts.waiting
            && let Some(link) = newest_of_most(&links, host)
        {
            counts.leaving += 1;
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

/// Returns the newest link with the host that has most, if that has at least two more than this host.
fn newest_of_most(links: &BTreeMap<u32, Arc<LinkCore>>, host: Origin) -> Option<&Arc<LinkCore>> {
    let mut of_hosts: HashMap<Origin, Vec<&Arc<LinkCore>>> = HashMap::new();
    for link in links.values().filter(|link| !link.is_displaced()) {
        of_hosts.entry(link.peer_host()).or_default().push(link);
    }
    let of_this = of_hosts.get(&host).map_or(0, Vec::len);
    // Links without addresses keep their places: this machine or the program itself made them.
    let most = of_hosts.into_iter().filter(|(host, _)| *host != Origin::NONE).map(|(_, links)| links);
    let most = most.max_by_key(Vec::len).filter(|most| most.len() >= of_this + 2)?;
    most.into_iter().max_by_key(|link| link.since())
}
