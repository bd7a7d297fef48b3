use std::collections::VecDeque;

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
}

#[test]
fn credit_is_due_at_half_a_window_and_not_twice_unread() {
    let mut reports = Reports::new(8);
    let mut received = Received(0);
    assert!(!reports.is_due(11, received));
    assert!(reports.is_due(12, received));
    reports.note_credit();
    assert_eq!(reports.stamp(12), 12);
    // The peer has only used what it knew of before.
    received.0 = 8;
    assert!(!reports.is_due(16, received));
    // Its ninth frame says that it has read the CREDIT.
    received.0 = 9;
    assert!(reports.is_due(16, received));
}

#[test]
fn other_headers_report_too() {
    let mut reports = Reports::new(8);
    assert_eq!(reports.stamp(11), 11);
    assert!(!reports.is_due(12, Received(4)));
    assert!(reports.is_due(15, Received(7)));
}

/// Two sides that send as they like over wires that deliver when they like: receives never run out, there is never more
/// than one CREDIT of a side unread, and nobody waits for ever.
#[test]
fn frames_always_find_a_receive_and_never_stop() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let window = random.u32(1..20);
        let mut sides = [Side::new(window), Side::new(window)];
        for _ in 0..3000 {
            let (near, far) = (random.usize(0..2), random.bool());
            if far {
                deliver(&mut sides, near);
            } else if random.u8(0..4) > 0 {
                sides[near].send();
            }
            sides[near].check();
        }
        // With all that is on its way delivered, one of them can send, even if neither wants anything but to.
        while sides.iter().any(|side| !side.wire.is_empty()) {
            deliver(&mut sides, 0);
            deliver(&mut sides, 1);
        }
        assert!(sides.iter().all(|side| side.credits.available() > 0), "seed {seed}, window {window}");
    }
}

struct Side {
    window: u32,
    credits: SendCredits,
    received: Received,
    granted: u32,
    reports: Reports,
    /// Frames on their way from here, with the grant in their header.
    wire: VecDeque<(Frame, u32)>,
}

#[derive(PartialEq)]
enum Frame {
    Data,
    Credit,
}

impl Side {
    fn new(window: u32) -> Self {
        let (credits, reports) = (SendCredits::new(window), Reports::new(window));
        Self { window, credits, received: Received(0), granted: window, reports, wire: VecDeque::new() }
    }

    fn send(&mut self) {
        if self.credits.available() > 0 {
            self.credits.take();
            self.wire.push_back((Frame::Data, self.reports.stamp(self.granted)));
        }
    }

    /// What is on its way fits into what the peer has promised.
    fn check(&self) {
        let (data, credits): (Vec<_>, Vec<_>) =
            self.wire.iter().partition(|(frame, _)| *frame == Frame::Data);
        assert!(data.len() <= self.window as usize);
        assert!(credits.len() <= 1, "{} CREDITs unread", credits.len());
    }
}

fn deliver(sides: &mut [Side; 2], from: usize) {
    let [a, b] = sides;
    let (from, to) = if from == 0 { (a, b) } else { (b, a) };
    let Some((frame, grant)) = from.wire.pop_front() else { return };
    to.credits.update(grant);
    if frame == Frame::Data {
        assert!(to.received.count(to.reports.reported));
        to.granted = to.granted.wrapping_add(1);
        if to.reports.is_due(to.granted, to.received) {
            to.reports.note_credit();
            let grant = to.reports.stamp(to.granted);
            to.wire.push_back((Frame::Credit, grant));
        }
    }
}
