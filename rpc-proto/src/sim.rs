//! Two peers, a stream and links that die, in virtual time: the order of events is the only clock.
//!
//! Small worlds are explored exhaustively, every order of every event; large ones by seeded random walks. In all of
//! them each message must arrive once, unchanged, and nobody may accuse the other of breaking the protocol.

mod peer;

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use self::peer::{Memory, OnLink, OnStream, Peer, content};
use super::inbox::Order;
use super::message::{Bulk, ExposeNothing, Frame, MIN_PAYLOAD, Message, Sealed};
use super::outbox::{Abandoned, Outbox, Route};
use super::wire::FrameType;
use crate::payload::Payload;

/// Two peers; 0 is the client.
#[derive(Clone, Debug, Hash)]
struct World {
    peers: [Peer; 2],
    /// The link of the last epoch is dead, though a side may not know yet.
    dead: bool,
    rules: Rules,
    attempts: u32,
}

/// How much happens in a world.
#[derive(Clone, Copy, Debug, Hash)]
struct Rules {
    /// One count for each side.
    messages: [u64; 2],
    attempts: u32,
    stream_frame: usize,
    link_frame: usize,
    longest: u64,
    /// By how much the next message is longer, modulo `longest`.
    spread: u64,
    /// Senders may change their minds.
    abandon: bool,
    /// The peer may read every other message that is longer, but for so many bytes at its beginning. 0: it reads none.
    begin: usize,
    /// They are the items of one stream each way, the server's behind the RESPONSE that begins it; none is queued behind a
    /// message that holds it back and has not left.
    stream: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Send(usize),
    /// A message is given up, however much of it has left, unless all.
    Abandon(usize, u64),
    Feed(usize),
    Stream(usize),
    Link(usize),
    Begin,
    /// The link dies; of what is on its way, so much still arrives on each side.
    Kill(usize, usize),
    Notice(usize),
    Ack(usize),
    /// A described message has been read, this one of those that are being read; or can't be.
    Pull(usize, usize, bool),
}

impl Rules {
    fn next_frame(&self, outbox: &mut Outbox, exposed: &mut BTreeMap<u32, Bytes>) -> Option<Frame> {
        match outbox.route() {
            Route::Stream => outbox.next(self.stream_frame, &mut ExposeNothing),
            Route::Upgraded(_) => outbox.next(self.link_frame, &mut Memory(exposed)),
        }
    }

    fn length(&self, side: usize, call: u64) -> u64 {
        (call * self.spread + side as u64 * 11) % self.longest
    }

    /// A message, of which the end may be read.
    fn message(&self, side: usize, call: u64, len: usize) -> Message {
        let whole = content(call, len);
        if self.stream && call == 1 && side == 1 {
            return Message::begin_stream(1, whole);
        }
        let begin = if self.begin > 0 && call % 2 == 1 { self.begin.min(len) } else { len };
        let (kind, of) = if self.stream { (FrameType::ITEM, 1) } else { (FrameType::REQUEST, call) };
        let mut message = Message::new(kind, of, whole.slice(..begin));
        let (rest, len) = (whole.slice(begin..), len - begin);
        if call % 4 == 1 && len > 0 {
            message.payload = Payload::from_body(rest.clone());
            message.bulk = Bulk::Sealed(Sealed { len, bytes: rest, number: call, link: 1 });
        } else {
            message.bulk = Bulk::Plain(rest);
        }
        if self.stream {
            message.keep_place();
        }
        message
    }
}

impl World {
    fn new(rules: Rules) -> Self {
        Self { peers: [Peer::new(), Peer::new()], dead: true, rules, attempts: 0 }
    }

    /// Everything that can happen now. Deaths are tried with every split of what is on its way.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for side in 0..2 {
            let (me, other) = (&self.peers[side], &self.peers[1 - side]);
            if me.sent < self.rules.messages[side] && !me.waits {
                events.push(Event::Send(side));
            }
            if self.rules.abandon {
                events.extend(me.outbox.wanted().map(|call| Event::Abandon(side, call)));
            }
            if self.next_frame(side).is_some() {
                events.push(Event::Feed(side));
            }
            if !other.stream.is_empty() {
                events.push(Event::Stream(side));
            }
            // Nothing is polled of a link that this side has not set up, or has given up.
            if !other.link.is_empty() && me.linked.is_some() {
                events.push(Event::Link(side));
            }
            if self.dead && me.linked.is_some_and(|epoch| me.upgrade_state.is_usable(epoch)) {
                events.push(Event::Notice(side));
            }
            for (i, pulling) in me.pulling.iter().enumerate() {
                // A read that was under way may complete after the link was given up, and means nothing then. By a
                // dead link nothing is read any more, nor what the other exposes no longer.
                let stale = me.linked != Some(pulling.epoch);
                if stale || !self.dead && other.exposed.contains_key(&pulling.seq) {
                    events.push(Event::Pull(side, i, true));
                }
                if !stale {
                    events.push(Event::Pull(side, i, false));
                }
            }
        }
        if self.attempts < self.rules.attempts && !self.peers[0].upgrade_state.is_open() {
            events.push(Event::Begin);
        }
        if !self.dead {
            for a in 0..=self.peers[0].link.len() {
                for b in 0..=self.peers[1].link.len() {
                    events.push(Event::Kill(a, b));
                }
            }
        }
        events
    }

    fn next_frame(&self, side: usize) -> Option<Frame> {
        let Peer { mut outbox, mut exposed, .. } = self.peers[side].clone();
        self.rules.next_frame(&mut outbox, &mut exposed)
    }

    fn happen(&mut self, event: Event) {
        self.happens(event);
        for peer in &mut self.peers {
            peer.waits &= peer.outbox.take_sent().is_empty();
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Send(side) => {
                let me = &mut self.peers[side];
                me.sent += 1;
                let len = self.rules.length(side, me.sent);
                let message = self.rules.message(side, me.sent, len as usize);
                me.waits = message.holds_back();
                me.outbox.push(message);
            }
            Event::Abandon(side, call) => {
                let me = &mut self.peers[side];
                match me.outbox.abandon(FrameType::REQUEST, call) {
                    Abandoned::Unsent | Abandoned::Partly => me.given_up.push(call),
                    Abandoned::Sent => {
                        // It is described, and may be read before the peer hears of this, which it does of a client.
                        me.doubtful.push(call);
                        if side == 0 {
                            me.outbox.push(Message::new(FrameType::CANCEL, call, Bytes::new()));
                        }
                    }
                }
            }
            Event::Feed(side) => self.feed(side),
            Event::Stream(side) => self.on_stream(side),
            Event::Link(side) => self.on_link(side),
            Event::Begin => {
                self.attempts += 1;
                let me = &mut self.peers[0];
                let epoch = me.upgrade_state.begin().expect("no attempt is open");
                me.inbox.expect(epoch);
                me.stream.push_back(OnStream::Offer(epoch));
            }
            Event::Kill(a, b) => {
                self.dead = true;
                self.peers[0].link.truncate(a);
                self.peers[1].link.truncate(b);
            }
            Event::Notice(side) => {
                let me = &mut self.peers[side];
                if let Some(epoch) = me.linked {
                    let fallen = me.session().fail(epoch);
                    me.fall(epoch, fallen);
                }
            }
            Event::Ack(side) => {
                let me = &mut self.peers[side];
                let rx_seq = me.inbox.rx_seq();
                me.stream.push_back(OnStream::Ack(rx_seq));
            }
            Event::Pull(side, i, works) => {
                let pulling = self.peers[side].pulling.remove(i);
                let rest = self.peers[1 - side].exposed.get(&pulling.seq).cloned();
                // A read that means nothing any more may have found anything.
                let rest = rest.unwrap_or_else(|| vec![0; pulling.total - pulling.begin.len()].into());
                self.peers[side].pull(&pulling, works.then_some(rest));
            }
        }
    }

    fn feed(&mut self, side: usize) {
        let (rules, dead) = (self.rules, self.dead);
        let me = &mut self.peers[side];
        let route = me.outbox.route();
        let Some(mut frame) = rules.next_frame(&mut me.outbox, &mut me.exposed) else { return };
        frame.header.rx_seq = me.inbox.rx_seq();
        match route {
            Route::Stream => me.stream.push_back(OnStream::Session(frame)),
            // A dead link takes what is posted, and it is gone.
            Route::Upgraded(_) if dead => {}
            Route::Upgraded(_) => me.link.push_back(OnLink::Session(frame)),
        }
    }

    fn on_stream(&mut self, side: usize) {
        let Some(item) = self.peers[1 - side].stream.pop_front() else { return };
        match item {
            OnStream::Session(frame) => self.peers[side].take(Route::Stream, frame),
            OnStream::Ack(rx_seq) => {
                self.peers[side].outbox.acknowledged(rx_seq).expect("an honest acknowledgement");
            }
            OnStream::Offer(epoch) => {
                let me = &mut self.peers[side];
                me.upgrade_state.accept(epoch).expect("an offer in its turn");
                me.inbox.expect(epoch);
                // Both are connected when the server has answered; the client probes first.
                self.dead = false;
                for peer in &mut self.peers {
                    peer.link.clear();
                    peer.linked = Some(epoch);
                    peer.probed = false;
                }
                self.peers[1 - side].link.push_back(OnLink::Probe);
            }
            OnStream::Up(up) => {
                let me = &mut self.peers[side];
                assert!(up.epoch <= me.upgrade_state.epoch());
                if me.upgrade_state.is_usable(up.epoch) {
                    for (header, payload) in me.inbox.up(up).expect("an UP in its place") {
                        let order = me.inbox.order(Route::Upgraded(up.epoch), &header);
                        assert_eq!(order, Ok(Order::Next), "held frames come in order");
                        me.deliver(&header, payload);
                    }
                }
            }
            OnStream::Down(down) => {
                let me = &mut self.peers[side];
                let fallen = me.session().on_down(&down).expect("an honest DOWN");
                me.fall(down.epoch, fallen);
            }
        }
    }

    fn on_link(&mut self, side: usize) {
        let Some(item) = self.peers[1 - side].link.pop_front() else { return };
        let dead = self.dead;
        let me = &mut self.peers[side];
        let Some(epoch) = me.linked else { return };
        match item {
            OnLink::Session(frame) => me.take(Route::Upgraded(epoch), frame),
            OnLink::Probe => {
                if side == 1 && !dead {
                    me.link.push_back(OnLink::Probe);
                }
                if let Some(up) = me.session().go_up(epoch) {
                    me.stream.push_back(OnStream::Up(up));
                }
            }
        }
    }

    /// Where nothing is on its way, everything has arrived, once.
    fn check(&self) {
        for side in 0..2 {
            let (me, other) = (&self.peers[side], &self.peers[1 - side]);
            let mut arrived = me.arrived.clone();
            arrived.sort_unstable();
            assert!(arrived.windows(2).all(|w| w[0] != w[1]), "a message arrived twice: {arrived:?}");
            let busy = |p: &Peer| {
                !p.stream.is_empty() || !p.link.is_empty() || !p.outbox.is_empty() || !p.pulling.is_empty()
            };
            let on_its_way = self.peers.iter().any(busy);
            let to_be_noticed = self.dead && self.peers.iter().any(|p| p.linked.is_some());
            if !on_its_way && !to_be_noticed {
                arrived.retain(|call| !other.doubtful.contains(call));
                let is_expected =
                    |call: &u64| !other.given_up.contains(call) && !other.doubtful.contains(call);
                let expected: Vec<u64> = (1..=other.sent).filter(is_expected).collect();
                assert_eq!(
                    arrived, expected,
                    "a message was lost on its way to {side}, or came though given up"
                );
                assert!(!me.inbox.is_assembling(), "nothing waits for what does not come");
                assert_eq!(me.inbox.memory(), 0, "nothing is counted that is not there");
                assert_eq!(other.outbox.exposed(), 0, "a DONE has come for all that was described");
                assert_eq!(other.outbox.assembling(), 0, "the peer's budget is given back");
                assert_eq!(other.outbox.waiting(), 0, "no message counts as one that waits");
            }
        }
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }
}

/// Visits every state of a world, whatever the order of events.
fn explore(rules: Rules) -> usize {
    let mut seen = HashSet::new();
    let mut stack = vec![World::new(rules)];
    while let Some(world) = stack.pop() {
        world.check();
        for event in world.events() {
            let mut next = world.clone();
            next.happen(event);
            if seen.insert(next.hash()) {
                stack.push(next);
            }
        }
    }
    seen.len()
}

/// One long random life. Panics with the seed when an invariant breaks.
fn walk(seed: u64, rules: Rules) {
    struct Said(u64);
    impl Drop for Said {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the seed of the walk that failed: {}", self.0);
            }
        }
    }
    let _said = Said(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = World::new(rules);
    loop {
        let mut events = world.events();
        // Death is rare, and so are changes of mind, or nothing else would ever happen.
        if rng.u32(..40) != 0 {
            events.retain(|e| !matches!(e, Event::Kill(..)));
        }
        if rng.u32(..40) != 0 {
            events.retain(|e| !matches!(e, Event::Abandon(..)));
        }
        if rng.u32(..20) == 0 {
            events.push(Event::Ack(rng.usize(..2)));
        }
        let rest = |e: &Event| matches!(e, Event::Kill(..) | Event::Abandon(..));
        if world.events().iter().all(rest) {
            break;
        }
        if events.is_empty() {
            continue;
        }
        world.happen(events[rng.usize(..events.len())]);
        world.check();
    }
    world.check();
    for side in 0..2 {
        let rx_seq = world.peers[1 - side].inbox.rx_seq();
        let outbox = &mut world.peers[side].outbox;
        outbox.acknowledged(rx_seq).expect("an honest acknowledgement");
        assert_eq!(outbox.retained(), 0, "what is acknowledged is not kept");
        assert_eq!(outbox.memory(), 0, "nothing is counted that is not there");
    }
}

const SMALL: Rules = Rules {
    messages: [1, 1],
    attempts: 1,
    stream_frame: 1 << 12,
    link_frame: 1 << 12,
    longest: 9,
    spread: 37,
    abandon: true,
    begin: 0,
    stream: false,
};

#[test]
fn every_order_of_events_in_small_worlds_loses_and_repeats_nothing() {
    let states = explore(SMALL);
    assert!(states > 1000, "only {states} states: the world is too small to show anything");
}

/// Frames so short that the client's message is in two, cut differently for each link.
#[test]
fn a_message_in_fragments_may_be_given_up_at_any_moment() {
    let states = explore(Rules { stream_frame: 8, link_frame: 7, longest: 14, ..SMALL });
    assert!(states > 10_000, "only {states} states: the world is too small to show anything");
}

/// Each side's message is longer than a frame, and described where the link lets it be.
const DESCRIBED: Rules = Rules { link_frame: 100, longest: 130, spread: 113, begin: 24, ..SMALL };

/// Reads complete, late or never; the client cancels at any moment, and the server gives up.
#[test]
fn a_described_message_survives_the_link_it_was_to_be_read_by_unless_it_is_given_up() {
    let states = explore(DESCRIBED);
    assert!(states > 100_000, "only {states} states: the world is too small to show anything");
}

#[test]
fn a_message_that_one_link_left_described_does_not_disturb_the_next() {
    for messages in [[1, 0], [0, 1]] {
        let states = explore(Rules { messages, attempts: 3, ..DESCRIBED });
        assert!(states > 10_000, "only {states} states: the world is too small to show anything");
    }
}

#[test]
fn a_second_attempt_after_a_fall_is_explored_too() {
    let states = explore(Rules { messages: [2, 2], attempts: 2, abandon: false, ..SMALL });
    assert!(states > 10_000, "only {states} states: the world is too small to show anything");
}

#[test]
fn long_lives_with_fragments_and_many_deaths_lose_and_repeat_nothing() {
    let rules = Rules {
        messages: [60, 60],
        attempts: 12,
        stream_frame: 4096,
        link_frame: 1024,
        longest: 9000,
        spread: 113,
        abandon: true,
        begin: 500,
        stream: false,
    };
    let walks = if std::env::var_os("FARCALL_LONG").is_some() { 3000 } else { 100 };
    for seed in 0..walks {
        walk(seed, rules);
    }
}

/// The shortest frames that a link may have, and messages of a stream that fit into them or are described or cut: one longer than
/// a frame comes first, or one that is short.
#[test]
fn items_of_a_stream_arrive_in_order_whatever_becomes_of_their_link() {
    let rules = Rules {
        messages: [2, 2],
        link_frame: MIN_PAYLOAD,
        longest: 1800,
        abandon: false,
        stream: true,
        ..DESCRIBED
    };
    for spread in [1400, 700] {
        let states = explore(Rules { messages: [3, 0], spread, ..rules });
        assert!(states > 1000, "only {states} states: the world is too small to show anything");
        let states = explore(Rules { messages: [0, 2], spread, attempts: 2, ..rules });
        assert!(states > 5000, "only {states} states: the world is too small to show anything");
    }
}

#[test]
fn long_streams_with_many_deaths_arrive_in_order() {
    let rules = Rules {
        messages: [80, 80],
        attempts: 12,
        stream_frame: 2048,
        link_frame: 1024,
        longest: 5000,
        spread: 113,
        abandon: false,
        begin: 500,
        stream: true,
    };
    let walks = if std::env::var_os("FARCALL_LONG").is_some() { 3000 } else { 100 };
    for seed in 0..walks {
        // The first message is short, or long.
        walk(seed, Rules { spread: if seed % 2 == 0 { 113 } else { 1999 }, ..rules });
    }
}
