//! The memory that is held for one connection.

use std::array;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::{Budget, HostTurn, Peer, USES, Use};
use crate::origin::Origin;
use crate::payload::MemoryGrant;
use crate::proto::inbox::Room;
use crate::sync::{Mutex, rank};
use crate::transport::BoxFuture;

/// A connection takes memory from its budget in steps of so many bytes. So most changes touch only the connection's counters.
const STEP: usize = 64 << 10;

/// The unit in which a [`Gauge`] counts, in bytes.
const UNIT: usize = 4 << 10;

/// A connection that holds no more than this goes on when the budget is used up, in bytes: an encrypted one with a receive buffer and
/// a call.
const LITTLE: usize = 192 << 10;

/// A peer that holds no more than this part of its share goes on when the budget is used up, one of so many. All such parts together are
/// five of 64 parts of the limit, and the budget is used up at 56.
const SMALL_PART: usize = 8;

/// The part of the budget that the decoded values of one message may take: one of so many.
const MOST_OF_MESSAGE: usize = 8;

/// The times in which most of what a closed connection held is freed, however seldom the runtime has a turn for that: while there is
/// enough memory, where little is left, where connections are closed to make room, and beyond the limit: at its next turn.
const TIMES_TO_FREE: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_millis(500), Duration::from_millis(200), Duration::ZERO];

/// How long a greedy connection is not read before its calls are refused. Handlers that end meanwhile may make room.
const PATIENCE: Duration = Duration::from_secs(1);

/// The memory that is held for one connection.
#[derive(Debug)]
pub(crate) struct Account {
    number: u64,
    budget: Arc<Budget>,
    origin: Origin,
    peer: Arc<Peer>,
    /// By [use](Use), in bytes.
    held: [AtomicUsize; USES],
    /// The sum of these.
    total: AtomicUsize,
    /// The bytes taken from the budget, which cover the sum.
    taken: AtomicUsize,
    /// Whether the connection was found greedy, and not found modest since.
    is_suspect: AtomicBool,
    /// The time from which calls of a greedy connection are refused.
    borne_until: Mutex<rank::Leaf, Option<Instant>>,
    /// Whether calls are refused.
    refuses: AtomicBool,
    is_closing: AtomicBool,
    /// The memory that it still has while it is closed, in bytes.
    closing: AtomicUsize,
    /// Notified when this connection holds less.
    freed: Notify,
    eviction: Notify,
}

impl Account {
    /// Opens an account for a connection from this address.
    pub(crate) fn open(budget: Arc<Budget>, address: Option<IpAddr>) -> Arc<Self> {
        let origin = Origin::of(address);
        let mut peers = budget.peers.lock();
        let peer = peers.entry(origin).or_default().clone();
        peer.count.fetch_add(1, Ordering::Relaxed);
        budget.count.store(peers.len(), Ordering::Relaxed);
        drop(peers);
        static LAST: AtomicU64 = AtomicU64::new(0);
        let account = Arc::new(Self {
            number: LAST.fetch_add(1, Ordering::Relaxed),
            budget,
            origin,
            peer,
            held: array::from_fn(|_| AtomicUsize::new(0)),
            total: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            is_suspect: AtomicBool::new(false),
            borne_until: Mutex::default(),
            refuses: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            closing: AtomicUsize::new(0),
            freed: Notify::new(),
            eviction: Notify::new(),
        });
        account.peer.accounts.lock().insert(account.number, Arc::downgrade(&account));
        account
    }

    /// Opens an account that nothing limits.
    pub(crate) fn unlimited(peer: Option<SocketAddr>) -> Arc<Self> {
        static UNLIMITED: LazyLock<Arc<Budget>> = LazyLock::new(|| Budget::new(usize::MAX));
        Self::open(UNLIMITED.clone(), peer.map(|peer| peer.ip()))
    }

    /// Whether anything limits the account.
    pub(crate) fn is_limited(&self) -> bool {
        self.budget.limit < usize::MAX
    }

    /// Returns the account's number, which no other account of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the host that the memory is held for.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the turn of the host.
    pub(crate) fn turn(&self) -> HostTurn {
        self.peer.turn.clone()
    }

    /// Returns the bytes that are held for this use.
    pub(crate) fn held(&self, of: Use) -> usize {
        self.held[of as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes that were taken from the budget.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn add(&self, of: Use, bytes: usize) {
        self.held[of as usize].fetch_add(bytes, Ordering::Relaxed);
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if total > self.taken() {
            self.settle();
        }
    }

    fn subtract(&self, of: Use, bytes: usize) {
        self.held[of as usize].fetch_sub(bytes, Ordering::Relaxed);
        let total = self.total.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if self.taken() >= total + 2 * STEP {
            self.settle();
        }
    }

    /// Takes from the budget what covers the sum, or gives back what is not needed.
    #[cold]
    fn settle(&self) {
        let needed = self.total.load(Ordering::Relaxed).next_multiple_of(STEP);
        // If two threads settle at once, the later one may set too little. The next change mends that.
        let before = self.taken.swap(needed, Ordering::Relaxed);
        // Wraps where it shrinks.
        let change = needed.wrapping_sub(before);
        let used_before = self.budget.used.fetch_add(change, Ordering::Relaxed);
        self.peer.used.fetch_add(change, Ordering::Relaxed);
        if self.is_closing() {
            self.note_closing(needed);
        }
        self.budget.meter.tell_soon(&self.budget);
        if needed < before {
            return self.note_freed(used_before, used_before.wrapping_add(change));
        }
        self.budget.peak.fetch_max(self.budget.used(), Ordering::Relaxed);
        if self.budget.is_used_up() {
            self.budget.make_room();
        }
    }

    /// Wakes this connection's waiter, and all waiters if the use falls below `high` or `full`. To wake all for each change is too
    /// expensive.
    fn note_freed(&self, used_before: usize, used: usize) {
        self.freed.notify_waiters();
        let falls_below = |limit| used_before > limit && used <= limit;
        if falls_below(self.budget.high) || falls_below(self.budget.full) {
            self.budget.freed.notify_waiters();
        }
    }

    /// Whether the budget is nearly used up and this connection holds more than its share, or the budget is used up and this
    /// connection holds more than a small part of its share.
    #[inline]
    fn is_greedy(&self) -> bool {
        self.budget.is_high()
            && (self.exceeds_share(1, 0)
                || self.budget.is_used_up() && self.exceeds_share(SMALL_PART, LITTLE))
    }

    /// Returns how much room there is for messages that arrive in parts.
    #[inline]
    pub(crate) fn room(&self) -> Room {
        match self.budget.is_high() {
            false => Room::Ample,
            true if self.refuses() => Room::None,
            true => Room::Scarce,
        }
    }

    /// Whether this connection's peer holds more than one of so many parts of its share. This connection must also hold more than its
    /// own part of that, and more than `little` bytes.
    #[cold]
    fn exceeds_share(&self, parts: usize, little: usize) -> bool {
        let share = self.budget.share() / parts;
        let of_one = share / self.peer.count.load(Ordering::Relaxed).max(1);
        self.peer.used.load(Ordering::Relaxed) > share && self.taken() > of_one.max(little)
    }

    /// Whether the connection may hold so many bytes more. Modest connections may use the budget up to its limit, above the level at
    /// which greedy ones are closed.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.budget.used().saturating_add(bytes) <= self.budget.limit && !self.refuses()
    }

    /// Whether calls are refused, because the connection has been greedy for long.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Finds out whether the connection is greedy, and since when. Returns how long that is borne before calls are refused;
    /// `None` if it is not greedy, or calls are refused already: then it is read, so that its calls can end.
    #[inline]
    pub(crate) fn judge(&self) -> Option<Instant> {
        if self.is_greedy() {
            return self.bear();
        }
        if self.is_suspect.load(Ordering::Relaxed) {
            self.forgive();
        }
        None
    }

    #[cold]
    fn bear(&self) -> Option<Instant> {
        let until = *self.borne_until.lock().get_or_insert_with(|| {
            self.is_suspect.store(true, Ordering::Relaxed);
            self.budget.meter.note_held_back();
            tracing::warn!(
                peer = ?self.origin.address(), held = self.taken(), used = self.budget.used(), limit = self.budget.limit,
                "memory for peers runs out; this connection holds more than its share, and is not read for now"
            );
            Instant::now() + PATIENCE
        });
        let refuses = Instant::now() >= until;
        self.refuses.store(refuses, Ordering::Relaxed);
        (!refuses).then_some(until)
    }

    #[cold]
    fn forgive(&self) {
        *self.borne_until.lock() = None;
        self.is_suspect.store(false, Ordering::Relaxed);
        self.refuses.store(false, Ordering::Relaxed);
    }

    /// Returns a future that ends when the connection may be read, if it may not be now.
    #[inline]
    pub(crate) fn pause(self: &Arc<Self>) -> Option<BoxFuture<()>> {
        if self.is_closing() {
            // Until its link is closed.
            return Some(Box::pin(pending()));
        }
        self.judge().map(|_| Box::pin(self.clone().until_modest()) as BoxFuture<()>)
    }

    /// Whether the connection was found greedy, so that it may not be read. It is read again when its calls are refused.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed) && !self.refuses()
    }

    /// Waits until the connection is no longer greedy, or its calls are refused.
    pub(crate) async fn until_modest(self: Arc<Self>) {
        loop {
            // Registered before the check, or a notification between the two would be lost.
            let (mut own, mut all) = (pin!(self.freed.notified()), pin!(self.budget.freed.notified()));
            own.as_mut().enable();
            all.as_mut().enable();
            let Some(until) = self.judge() else { return };
            let freed = async {
                tokio::select! {
                    () = own => {}
                    () = all => {}
                }
            };
            // The result does not matter: either may have changed the judgement.
            let _ = timeout_at(until, freed).await;
        }
    }

    /// Returns how soon most of what a closed connection held is to be freed.
    pub(crate) fn time_to_free(&self) -> Duration {
        let budget = &self.budget;
        let levels = [budget.is_high(), budget.is_used_up(), budget.used() > budget.limit];
        TIMES_TO_FREE[levels.into_iter().map(usize::from).sum::<usize>()]
    }

    /// Has the connection closed, because it holds most where nothing is left.
    pub(super) fn evict(&self) {
        if self.begin_closing() {
            self.budget.meter.note_closed();
            self.eviction.notify_one();
        }
    }

    /// Records that the connection is being closed, and will free what it holds: no other has to be closed for that. Returns whether this
    /// is news.
    pub(crate) fn begin_closing(&self) -> bool {
        let is_first = !self.is_closing.swap(true, Ordering::Relaxed);
        if is_first {
            self.note_closing(self.taken());
        }
        is_first
    }

    /// Records how much this connection, which is being closed, will free.
    fn note_closing(&self, taken: usize) {
        let before = self.closing.swap(taken, Ordering::Relaxed);
        // Wraps where it shrinks.
        self.budget.closing.fetch_add(taken.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether the connection is being closed, or was.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Resolves when the connection must be closed to make room, with the reason.
    pub(crate) async fn evicted(&self) -> String {
        self.eviction.notified().await;
        let Budget { limit, .. } = &*self.budget;
        let held = self.total.load(Ordering::Relaxed);
        format!(
            "the memory for peers is used up (limits.memory is {limit} bytes), and this connection holds most: {held} bytes"
        )
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Gauges hold the account, so the sum is 0.
        self.settle();
        self.peer.accounts.lock().remove(&self.number);
        let mut peers = self.budget.peers.lock();
        if self.peer.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            peers.remove(&self.origin);
        }
        self.budget.count.store(peers.len(), Ordering::Relaxed);
    }
}

/// A count of the memory that one owner holds for the peer. It is counted out when the gauge is dropped.
#[derive(Debug)]
pub(crate) struct Gauge {
    account: Arc<Account>,
    of: Use,
    /// The bytes that were set last.
    bytes: usize,
    /// A multiple of [`UNIT`], so that small changes cost little.
    counted: usize,
}

impl Gauge {
    pub(crate) fn new(account: &Arc<Account>, of: Use) -> Self {
        Self { account: account.clone(), of, bytes: 0, counted: 0 }
    }

    /// Returns a gauge that shows so many bytes.
    pub(crate) fn holding(account: &Arc<Account>, of: Use, bytes: usize) -> Self {
        let mut gauge = Self::new(account, of);
        gauge.set(bytes);
        gauge
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Sets how many bytes are held.
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.change(bytes);
        }
    }

    #[inline(never)]
    fn change(&mut self, bytes: usize) {
        self.bytes = bytes;
        let rounded = bytes.next_multiple_of(UNIT);
        let before = std::mem::replace(&mut self.counted, rounded);
        match rounded.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.account.add(self.of, more),
            None => self.account.subtract(self.of, before - rounded),
        }
    }
}

/// Counts the memory of decoded values.
impl MemoryGrant for Gauge {
    fn grow(&mut self, bytes: usize) -> bool {
        // A list that grows takes three times as much for a moment, which nothing counts.
        let is_modest = self.bytes.saturating_add(bytes) <= self.account.budget.limit / MOST_OF_MESSAGE;
        let is_granted = is_modest && self.account.has_room(bytes);
        if is_granted {
            self.set(self.bytes + bytes);
        }
        is_granted
    }

    fn reset(&mut self) {
        self.set(0);
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.set(0);
    }
}
