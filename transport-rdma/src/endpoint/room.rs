//! Room for another link, where receives or queue pairs are used up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_core::origin::Origin;
use farcall_core::transport::LinkEnd;
use tokio::time::timeout_at;

use super::Shard;
use crate::link::LinkCore;
use crate::resources::{self, NoRoom};

/// How long a newcomer waits for room.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a peer may take to answer that it gives back nothing, when others wait.
const RECLAIM_LIMIT: Duration = Duration::from_secs(3);

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
        let mut displaced = None;
        loop {
            let (freed, destroyed) = (self.resources.memory.freed(), self.destroyed.notified());
            let decided = create().await?;
            let is_near = match decided {
                Err(NoRoom::Receives(_)) if self.reclaim() || self.displace(host, &mut displaced) => {
                    timeout_at(deadline, freed).await.is_ok()
                }
                Err(NoRoom::Completions) if self.displace(host, &mut displaced) => {
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

    /// Ends a link to make room for one with this host, unless that was done and the link is not gone yet. It is the newest one
    /// of the host with most links, if that has at least two more. False: there is no such host.
    fn displace(&self, host: Origin, displaced: &mut Option<Arc<LinkCore>>) -> bool {
        let links = self.links();
        if displaced.as_ref().is_some_and(|link| links.contains_key(&link.number())) {
            return true;
        }
        let mut of_hosts: HashMap<Origin, Vec<&Arc<LinkCore>>> = HashMap::new();
        for link in links.values().filter(|link| !link.is_displaced()) {
            of_hosts.entry(link.peer_host()).or_default().push(link);
        }
        let of_newcomer = of_hosts.get(&host).map_or(0, Vec::len);
        // Links without addresses keep their places: this machine or the program itself made them.
        let most = of_hosts.into_iter().filter(|(host, _)| *host != Origin::NONE);
        let most = most.map(|(_, links)| links).max_by_key(Vec::len).unwrap_or_default();
        if most.len() < of_newcomer + 2 {
            return false;
        }
        let newest = most.into_iter().max_by_key(|link| link.since());
        if let Some(link) = newest {
            link.displace();
            let why = format!(
                "{}: most RDMA connections are with this host, and another host needs room for one; rdma.connections and \
                 rdma.memory bound them",
                link.name()
            );
            self.resources.mailbox.failed(link.number(), LinkEnd::failed(why));
        }
        *displaced = newest.cloned();
        true
    }
}
