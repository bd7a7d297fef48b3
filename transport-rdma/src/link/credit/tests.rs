use std::collections::{HashSet, VecDeque};

use super::*;

#[test]
fn late_and_repeated_grants_say_nothing() {
    let mut credits = SendCredits::new(4);
    (0..4).for_each(|_| credits.take());
    assert_eq!(credits.available(), 0);
    assert!(credits.update(6));
    assert!(!credits.update(6) && !credits.update(5));
    assert_eq!(credits.available(), 2);
}

#[test]
fn counts_wrap() {
    let mut credits = SendCredits { granted: u32::MAX, used: u32::MAX - 1 };
    credits.take();
    assert_eq!(credits.available(), 0);
    assert!(credits.update(1));
    assert_eq!(credits.available(), 2);
    let mut received = Received(u32::MAX);
    assert!(received.count(0));
    assert!(!received.count(0));
}

#[test]
fn forfeited_credits_count_as_used() {
    let mut credits = SendCredits::new(10);
    credits.take();
    assert_eq!(credits.forfeit(4), 4);
    assert_eq!(credits.available(), 5);
    assert_eq!(credits.forfeit(100), 5);
    assert_eq!(credits.forfeit(100), 0);
    let mut received = Received(1);
    assert!(!received.forfeit(10, 10));
    assert!(received.forfeit(9, 10) && received.is_all_of(10));
}

#[test]
fn grant_is_due_at_half_a_window_and_not_twice_unread() {
    let mut reports = CreditUpdate::new(8);
    let mut received = Received(0);
    assert!(!reports.is_due(11, received));
    assert!(reports.is_due(12, received));
    reports.note_grant();
    assert_eq!(reports.stamp(12), 12);
    // The peer has only used what it knew of before.
    received.0 = 8;
    assert!(!reports.is_due(16, received));
    // Its ninth frame says that it has read the GRANT.
    received.0 = 9;
    assert!(reports.is_due(16, received));
}

#[test]
fn reclaim_is_read_when_it_is_answered_and_a_grant_when_a_ping_behind_it_is() {
    let mut reports = CreditUpdate::new(8);
    reports.note_reclaim();
    assert!(!reports.is_read(Received(8)));
    reports.note_forfeit();
    assert!(reports.is_read(Received(8)));
    reports.note_grant();
    reports.note_forfeit();
    assert!(reports.may_ping());
    reports.note_ping();
    assert!(!reports.may_ping() && !reports.is_read(Received(8)));
    assert!(reports.note_pong() && reports.is_read(Received(8)));
    assert!(!reports.note_pong(), "it was not asked again");
}

#[test]
fn other_headers_report_too() {
    let mut reports = CreditUpdate::new(8);
    assert_eq!(reports.stamp(11), 11);
    assert!(!reports.is_due(12, Received(4)));
    assert!(reports.is_due(15, Received(7)));
}

#[test]
fn turn_comes_with_something_to_hear() {
    let mut turn = PollCycle::default();
    assert!(turn.take(100), "the first");
    assert!(!turn.take(100));
    assert!(turn.take(132) && !turn.take(132));
}

/// Two sides that send, lend, reclaim and deliver whenever they can.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World([Side; 2]);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Side {
    /// Frames that it wants to send yet, windows that it may lend and reclaim yet, and PINGs by which it may measure yet.
    wants: u8,
    lends: u8,
    measures: u8,
    /// The smallest and the largest window that both give.
    windows: (u32, u32),
    credits: SendCredits,
    received: Received,
    granted: u32,
    window: u32,
    reports: CreditUpdate,
    /// Whether it has said something since the last CREDIT and the last PING arrived: [`PollCycle`], without the counts, of which
    /// there are too many to go through.
    said: [bool; 2],
    /// How many it has asked for: wanted, and then with the RECLAIM on its way.
    reclaim: Option<u32>,
    asked: Option<u32>,
    forfeit: Option<u32>,
    pong: bool,
    /// Frames on their way from here, with the grant in their header.
    wire: VecDeque<(Frame, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    Data,
    Grant,
    Reclaim(u32),
    Forfeit(u32),
    Ping,
    Pong,
}

#[derive(Clone, Copy)]
enum Step {
    Send(usize),
    Lend(usize),
    Reclaim(usize),
    Measure(usize),
    Deliver(usize),
}

impl Side {
    fn new(wants: u8, lends: u8, measures: u8, windows: (u32, u32)) -> Self {
        let (base, _) = windows;
        Self {
            wants,
            lends,
            measures,
            windows,
            credits: SendCredits::new(base),
            received: Received(0),
            granted: base,
            window: base,
            reports: CreditUpdate::new(base),
            said: [true; 2],
            reclaim: None,
            asked: None,
            forfeit: None,
            pong: false,
            wire: VecDeque::new(),
        }
    }

    fn put(&mut self, frame: Frame) {
        let grant = self.reports.stamp(self.granted);
        self.said = [true; 2];
        self.wire.push_back((frame, grant));
    }

    fn ping(&mut self) {
        self.reports.note_ping();
        self.put(Frame::Ping);
    }

    /// Sends the control frames that a link sends whenever it has a turn.
    fn say_controls(&mut self) {
        if std::mem::take(&mut self.pong) {
            self.put(Frame::Pong);
        }
        if let Some(count) = self.forfeit.take() {
            let count = self.credits.forfeit(count);
            self.put(Frame::Forfeit(count));
        }
        if self.reports.is_read(self.received)
            && let Some(count) = self.reclaim.take()
        {
            self.asked = Some(count);
            self.reports.note_reclaim();
            self.put(Frame::Reclaim(count));
        }
        if self.reclaim.is_some() && !self.reports.is_read(self.received) && self.reports.may_ping() {
            self.ping();
        }
        if self.reports.is_due(self.granted, self.received) {
            self.reports.note_grant();
            self.put(Frame::Grant);
        }
    }
}

impl World {
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (i, side) in self.0.iter().enumerate() {
            let asks = side.reclaim.or(side.asked);
            if side.wants > 0 && side.credits.available() > 0 {
                steps.push(Step::Send(i));
            }
            if side.lends > 0 && side.window < side.windows.1 && asks.is_none() {
                steps.push(Step::Lend(i));
            }
            if side.window > side.windows.0 && asks.is_none() {
                steps.push(Step::Reclaim(i));
            }
            if side.measures > 0 && side.reports.may_ping() {
                steps.push(Step::Measure(i));
            }
            if !side.wire.is_empty() {
                steps.push(Step::Deliver(i));
            }
        }
        steps
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(i) => {
                self.0[i].wants -= 1;
                self.0[i].credits.take();
                self.0[i].put(Frame::Data);
            }
            Step::Lend(i) => {
                let side = &mut self.0[i];
                side.lends -= 1;
                let lent = side.window.min(side.windows.1 - side.window);
                side.granted += lent;
                side.window += lent;
                side.reports.set_window(side.window);
                side.say_controls();
            }
            Step::Reclaim(i) => {
                let side = &mut self.0[i];
                side.reclaim = Some(side.window - side.windows.0);
                side.say_controls();
            }
            Step::Measure(i) => {
                self.0[i].measures -= 1;
                self.0[i].ping();
            }
            Step::Deliver(i) => self.deliver(i),
        }
    }

    fn deliver(&mut self, from: usize) {
        let [a, b] = &mut self.0;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let Some((frame, grant)) = from.wire.pop_front() else { return };
        let told = to.reports.reported;
        to.credits.update(grant);
        match frame {
            Frame::Data => {
                assert!(to.received.count(told), "a frame without a credit");
                to.granted += 1;
            }
            Frame::Grant => assert!(std::mem::take(&mut to.said[0]), "out of turn"),
            Frame::Ping => {
                assert!(std::mem::take(&mut to.said[1]), "out of turn");
                to.pong = true;
            }
            Frame::Pong => assert!(to.reports.note_pong()),
            Frame::Reclaim(count) => {
                assert!(std::mem::take(&mut to.said[0]), "out of turn");
                assert_eq!(to.forfeit, None, "asked again before the answer");
                to.forfeit = Some(count);
            }
            Frame::Forfeit(count) => {
                assert!(to.asked.take().is_some_and(|asked| count <= asked), "not asked for");
                assert!(to.received.forfeit(count, told), "given back and used");
                to.window -= count;
                to.reports.note_forfeit();
                to.reports.set_window(to.window);
            }
        }
        to.say_controls();
    }

    /// Checks that messages on their way find the receives that the other side keeps for this one.
    fn check(&self) {
        for (side, far) in [(&self.0[0], &self.0[1]), (&self.0[1], &self.0[0])] {
            let count = |kind: fn(&Frame) -> bool| side.wire.iter().filter(|(frame, _)| kind(frame)).count();
            let data = count(|frame| matches!(frame, Frame::Data)) as u32;
            let (available, window) = (side.credits.available(), far.window);
            assert!(data + available <= window, "{data} on their way and {available} more for {window}");
            assert!((far.windows.0..=far.windows.1).contains(&far.window));
            assert!(count(|frame| matches!(frame, Frame::Grant | Frame::Reclaim(_))) <= 1, "CREDITs unread");
            assert!(count(|frame| *frame == Frame::Ping) <= 1 && count(|frame| *frame == Frame::Pong) <= 1);
            let forfeits = count(|frame| matches!(frame, Frame::Forfeit(_)));
            assert!(
                forfeits == 0 || (forfeits == 1 && far.window > far.windows.0),
                "FORFEIT without a receive"
            );
        }
    }

    /// Nothing is on its way: everything was sent, or can be.
    fn check_rest(&self) {
        for side in &self.0 {
            assert!(side.credits.available() > 0, "starved for ever");
            assert!(side.reclaim.is_none() && side.asked.is_none() && side.forfeit.is_none(), "not answered");
        }
    }
}

/// Whatever the order: receives never run out, no more than one CREDIT is unread, forfeits are exact, and nobody waits for
/// ever, even if both are starved.
#[test]
fn every_order_of_two_small_sides_is_safe_and_ends() {
    every_order(World([Side::new(4, 2, 0, (1, 2)), Side::new(3, 1, 0, (1, 2))]));
    every_order(World([Side::new(2, 1, 1, (1, 2)), Side::new(2, 1, 0, (1, 2))]));
}

fn every_order(first: World) {
    let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(world) = open.pop() {
        world.check();
        let steps = world.steps();
        if world.0.iter().all(|side| side.wire.is_empty()) {
            world.check_rest();
        }
        for step in steps {
            let mut next = world.clone();
            next.step(step);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(seen.len() > 10_000, "{} worlds", seen.len());
    println!("{} worlds", seen.len());
}

/// Larger windows, at random.
#[test]
fn many_frames_in_random_order_always_find_a_receive() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let base = random.u32(1..5);
        let windows = (base, base * random.u32(1..9));
        let mut world = World([Side::new(250, 200, 100, windows), Side::new(250, 200, 100, windows)]);
        loop {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            world.step(steps[random.usize(0..steps.len())]);
            world.check();
        }
        assert!(world.0.iter().all(|side| side.wants == 0), "seed {seed}");
    }
}
