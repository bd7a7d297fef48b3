//! A channel to several servers that are equivalent: which of them a call goes to.
//!
//! A [`Balancer`] has a [`Member`] for each server. A member keeps its connections, and tells when they come and go. The [`Picker`] is made
//! anew then, of the members that are ready. A call takes the picker's lock for reading.

mod ejection;
mod endpoint;
mod health;
mod load;
mod member;
mod picker;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

pub use self::endpoint::Endpoint;
pub use self::health::{Answers, WatchHealth};
pub(super) use self::member::Picked;
pub use self::member::{EndpointState, Readiness};
use self::member::{Member, States};
use self::picker::{Picker, mix};
use super::connector::no_runtime;
use super::meter::count_ejection;
use crate::class::TrafficClass;
use crate::config::Balance;
use crate::connection::Connection;
use crate::interface::stable_hash;
use crate::settings::Settings;
use crate::status::{Blame, Code, Executed, Status};

/// The servers of a channel.
pub(super) struct Balancer {
    me: Weak<Self>,
    name: String,
    settings: Arc<Settings>,
    /// Those of the settings that may change.
    balance: Mutex<Arc<Balance>>,
    runtime: Option<Handle>,
    members: Mutex<Vec<Arc<Member>>>,
    picker: RwLock<Picker>,
    states: States,
    /// The reason why there are no servers.
    none: Mutex<Option<Status>>,
    /// A number of this channel's own, by which it chooses a subset and the first of several servers.
    seed: u64,
}

/// A connection that was chosen for a call.
pub(super) struct Chosen {
    pub(super) connection: Arc<Connection>,
    pub(super) picked: Option<Picked>,
}

impl Balancer {
    pub(super) fn new(name: String, settings: Arc<Settings>, runtime: Option<Handle>) -> Arc<Self> {
        use std::hash::{BuildHasher, RandomState};
        let seed = RandomState::new().hash_one(0);
        let balance = Mutex::new(Arc::new(settings.balance.clone()));
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name,
            settings,
            balance,
            runtime,
            members: Mutex::default(),
            picker: RwLock::new(Picker::beginning_with(seed)),
            states: watch::Sender::new(Arc::from([])),
            none: Mutex::default(),
            seed,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn balance(&self) -> Arc<Balance> {
        Arc::clone(&self.balance.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the policy, the locality and when servers are ejected. The subset is chosen anew when the servers are [set](Self::set).
    pub(super) fn reconfigure(&self, balance: &Balance) {
        *self.balance.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(balance.clone());
        self.members().iter().for_each(|member| member.ejection().configure(balance));
        self.changed();
    }

    pub(super) fn states(&self) -> watch::Receiver<Arc<[EndpointState]>> {
        self.states.subscribe()
    }

    /// Sets the servers, each name once. A server that stays keeps its connections, and its connector. One that is gone gets no new
    /// calls, and its calls in progress finish there.
    pub(super) fn set(&self, mut endpoints: Vec<Endpoint>) {
        let Some(runtime) = &self.runtime else { return };
        let mut names = HashSet::new();
        endpoints.retain(|endpoint| names.insert(Arc::clone(&endpoint.name)));
        let mut members = self.members();
        let mut before: HashMap<_, _> =
            members.drain(..).map(|member| (Arc::clone(&member.name), member)).collect();
        let (mut new, balance) = (Vec::new(), self.balance());
        for endpoint in self.subset(endpoints) {
            let member = match before.remove(&endpoint.name) {
                Some(member) => {
                    member.set_place(&endpoint);
                    member
                }
                None => {
                    let member = Member::new(endpoint, &self.settings, runtime, &self.me);
                    member.ejection().configure(&balance);
                    new.push(Arc::clone(&member));
                    member
                }
            };
            members.push(member);
        }
        if !members.is_empty() {
            *self.none.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        drop(members);
        new.iter().for_each(|member| member.start(runtime));
        self.changed();
        // Only now does no new call go there.
        before.into_values().for_each(|member| drop(runtime.spawn(member.retire())));
    }

    /// Notes why there are no servers, for as long as there are none.
    pub(super) fn failed(&self, why: Status) {
        let why = why.with_executed(Executed::No).with_blame(Blame::Environment);
        *self.none.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.states.send_modify(|_| ());
    }

    /// Returns the servers of this channel's subset: of each tier those whose names, mixed with the channel's number, are the smallest. So
    /// few move when a server comes or goes (rendezvous hashing).
    fn subset(&self, mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
        let most = self.balance().subset as usize;
        if most > 0 && most < endpoints.len() {
            let hash = |endpoint: &Endpoint| mix(self.seed ^ stable_hash(endpoint.name.as_bytes()));
            endpoints.sort_by_cached_key(|endpoint| (endpoint.tier, hash(endpoint)));
            let tiers = endpoints.chunk_by(|a, b| a.tier == b.tier);
            return tiers.flat_map(|tier| tier.iter().take(most)).cloned().collect();
        }
        endpoints
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the picker anew, because a member has come, gone, or changed.
    pub(super) fn changed(&self) {
        // Held until the end, so that the last change counts.
        let members = self.members();
        let of = |wanted: fn(&Readiness) -> bool| -> Vec<_> {
            members.iter().filter(|member| wanted(&member.readiness())).cloned().collect()
        };
        let mut ready = of(|readiness| matches!(readiness, Readiness::Ready));
        if ready.is_empty() {
            // One that fails calls, may be gone, or says that it does not serve is better than none.
            ready = of(|readiness| {
                matches!(readiness, Readiness::Ejected | Readiness::Suspected | Readiness::NotServing)
            });
        }
        let balance = self.balance();
        let locality = &balance.locality;
        let is_far = |member: &Arc<Member>| locality.is_empty() || *member.locality() != **locality;
        let rank = |member: &Arc<Member>| (member.tier(), is_far(member));
        let best = ready.iter().map(rank).min();
        let is_best = |member: &Arc<Member>| Some(rank(member)) == best;
        ready.retain(is_best);
        // Weights compare servers of one rank.
        let all: Vec<_> = members.iter().filter(|member| is_best(member)).cloned().collect();
        // Made without the picker's lock, which calls take.
        let picker = self.picker.read().unwrap_or_else(PoisonError::into_inner);
        let (ring, turns) = (picker.ring(), picker.turns());
        drop(picker);
        let picker = Picker::new(balance.policy, ready, &all, ring, turns);
        *self.picker.write().unwrap_or_else(PoisonError::into_inner) = picker;
        self.states.send_replace(members.iter().map(|member| member.state()).collect());
    }

    /// Gives a server that fails its calls no more of them for a while, unless too many others are ejected.
    fn eject(self: &Arc<Self>, member: &Arc<Member>) {
        let balance = self.balance();
        let members = self.members();
        let ejected = members.iter().filter(|member| member.ejection().is_ejected()).count();
        let most = members.len() * balance.max_ejected_percent as usize / 100;
        if ejected >= most {
            return;
        }
        let Some(pause) = member.ejection().eject(Duration::from_millis(balance.eject_ms)) else { return };
        // Held until here, so that two servers are not ejected where there is room for one.
        drop(members);
        self.changed();
        count_ejection();
        let (this, member) = (Arc::downgrade(self), Arc::downgrade(member));
        let readmit = async move {
            tokio::time::sleep(pause).await;
            if let (Some(this), Some(member)) = (this.upgrade(), member.upgrade()) {
                member.ejection().readmit();
                this.changed();
            }
        };
        self.spawn(readmit);
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Returns a connection for a call of this class. `picked`: the server where the call was last, and failed, and then the one that was
    /// chosen, if any is connected. `None`: it has no connection for this class yet.
    #[inline]
    pub(super) fn choose(
        &self,
        class: TrafficClass,
        key: Option<u64>,
        picked: &mut Option<Picked>,
    ) -> Option<Arc<Connection>> {
        self.choose_but(&[], class, key, picked)
    }

    /// [Chooses](Self::choose) among all servers but those that have failed.
    #[inline]
    fn choose_but(
        &self,
        failed: &[Arc<Member>],
        class: TrafficClass,
        key: Option<u64>,
        picked: &mut Option<Picked>,
    ) -> Option<Arc<Connection>> {
        // Dropped after the lock: it may be the last to hold a server that is gone.
        let avoid = picked.take();
        let picker = self.picker.read().unwrap_or_else(PoisonError::into_inner);
        let has_failed = |member: &Member| failed.iter().any(|failed| std::ptr::eq(&**failed, member));
        let takes = |member: &Member| if has_failed(member) { None } else { member.takes(class) };
        let is_full = |member: &Member| member.is_full(class);
        let now = picker.now();
        let (member, connection) =
            picker.pick(key, now, avoid.as_ref().map(Picked::member), is_full, takes)?;
        *picked = Some(Picked::new(Arc::clone(member), now, class));
        connection
    }

    /// Returns a connection for a call of this class, or waits for one. `at`: the server that was chosen.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed: no server can be reached, or none by a connection of this class.
    pub(super) async fn connection(
        &self,
        class: TrafficClass,
        key: Option<u64>,
        mut at: Option<Picked>,
    ) -> Result<Chosen, Status> {
        if self.runtime.is_none() {
            return Err(no_runtime());
        }
        let mut states = self.states.subscribe();
        let (mut failed, mut why) = (Vec::new(), None);
        loop {
            if let Some(picked) = at.take() {
                match picked.member().connect(class).await {
                    Ok(connection) => return Ok(Chosen { connection, picked: Some(picked) }),
                    Err(status) => {
                        // Another server may take it.
                        failed.push(Arc::clone(picked.member()));
                        why = Some(status);
                    }
                }
            }
            // Before the picker is asked: a server that becomes ready between is a change to wake up for.
            let hopeless = self.hopeless(&states.borrow_and_update());
            if let Some(connection) = self.choose_but(&failed, class, key, &mut at) {
                return Ok(Chosen { connection, picked: at });
            }
            if at.is_some() {
                continue;
            }
            if let Some(status) = why {
                return Err(status);
            }
            if let Some(status) = hopeless {
                return Err(status);
            }
            // Can't fail, because `self` holds the sender.
            let _ = states.changed().await;
        }
    }

    /// Waits until a call that waits for a server should ask again.
    pub(super) async fn pause(&self) {
        let mut states = self.states.subscribe();
        if self.hopeless(&states.borrow_and_update()).is_some() {
            // Can't fail, because `self` holds the sender.
            let _ = states.wait_for(|states| self.hopeless(states).is_none()).await;
            return;
        }
        // A server can be reached, but not by a connection of the call's class. Or that has just changed.
        let pause = self.settings.liveness.reconnect();
        let _ = tokio::time::timeout(pause, states.changed()).await;
    }

    /// Returns why no server can be reached, if that is so.
    fn hopeless(&self, states: &[EndpointState]) -> Option<Status> {
        if states.is_empty() {
            return self.none.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        let failures = states.iter().map(|state| match &state.readiness {
            Readiness::Failing(status) => Some(status),
            _ => None,
        });
        let failures = failures.collect::<Option<Vec<_>>>()?;
        Some(all_of(&failures))
    }

    /// Ends the pauses between attempts to connect.
    pub(super) fn end_pauses(&self) {
        self.members().iter().for_each(|member| member.end_pauses());
        self.changed();
    }
}

/// How many failures a status names.
const NAMED: usize = 3;

fn all_of(failures: &[&Status]) -> Status {
    let mut said: Vec<_> = failures.iter().take(NAMED).map(|status| status.message()).collect();
    let more = format!("and {} more", failures.len().saturating_sub(NAMED));
    if failures.len() > NAMED {
        said.push(&more);
    }
    Status::new(
        Code::Unavailable,
        format!("none of {} servers can be reached: {}", failures.len(), said.join("; ")),
    )
    .with_executed(Executed::No)
    .with_blame(Blame::Environment)
}

impl fmt::Debug for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer").field("name", &self.name).finish_non_exhaustive()
    }
}
