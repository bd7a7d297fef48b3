use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use super::table::KEPT;
use super::{NeverMade, OpenError, SlotOutcome, Slots};

type Words = Slots<&'static str, &'static str>;

fn slots(places: usize) -> Words {
    let slots = Slots::new();
    slots.admit(places);
    slots
}

#[test]
fn a_lone_call_that_looks_is_told_of_nothing_before_it_is_polled() {
    let slots = slots(2);
    let cx = TaskContext::from_waker(Waker::noop());
    let looks = |cx: &TaskContext<'_>| slots.open(false, None, true, cx, |_| {}).unwrap();
    let first = looks(&cx);
    assert!(first.alone && slots.answer_one(first.call, "early").unwrap().is_none());
    assert_eq!(slots.poll(first.call, false, &cx).0, Poll::Ready(SlotOutcome::End("early")));
    let [alone, other] = [looks(&cx), looks(&cx)];
    assert!(slots.answer_one(other.call, "not alone").unwrap().is_some());
    assert_eq!(slots.poll(alone.call, false, &cx).0, Poll::Pending);
    assert!(slots.answer_one(alone.call, "late").unwrap().is_some(), "it has slept");
}

fn open(slots: &Words) -> Result<(u64, bool), OpenError<&'static str>> {
    let cx = TaskContext::from_waker(Waker::noop());
    slots.open(false, None, false, &cx, |_| {}).map(|opened| (opened.call, opened.alone))
}

#[test]
fn calls_find_their_slots_however_long_others_last() {
    let slots = slots(100);
    let long: Vec<u64> = (0..40).map(|_| open(&slots).unwrap().0).collect();
    for _ in 0..1000 {
        let (call, alone) = open(&slots).unwrap();
        assert!(!alone && !long.contains(&call));
        assert!(slots.answer_one(call, "short").unwrap().is_some());
        assert!(slots.end(call, "again").is_none());
        let (found, _) = slots.poll(call, false, &TaskContext::from_waker(Waker::noop()));
        assert_eq!(found, Poll::Ready(SlotOutcome::End("short")));
    }
    assert_eq!(
        {
            let mut waiting = slots.waiting_after(0);
            waiting.sort_unstable();
            waiting
        },
        long
    );
}

#[test]
fn only_the_peer_answers_and_only_what_was_asked() {
    let slots = slots(10);
    assert_eq!(slots.answer_one(0, "").unwrap_err(), NeverMade);
    let (call, _) = open(&slots).unwrap();
    assert_eq!(slots.answer_one(call + 1, "").unwrap_err(), NeverMade);
    slots.end(call, "the connection is gone");
    assert!(!slots.has_answered());
    slots.answer_one(call, "late").unwrap();
    assert!(slots.has_answered());
}

/// A lone call's message is sent at once and wakes the connection's keeper. A waiter that got a place is not a call
/// yet.
#[test]
fn a_caller_about_to_make_a_call_is_no_other_call() {
    let slots = slots(10);
    let cx = TaskContext::from_waker(Waker::noop());
    assert_eq!(slots.wait_in_line(&mut None, &cx), Poll::Ready(Ok(())));
    assert!(slots.is_empty());
    assert_eq!(open(&slots), Ok((1, true)));
}

#[test]
fn many_calls_leave_no_large_table_behind() {
    let slots = slots(usize::MAX);
    let calls: Vec<u64> = (0..10 * KEPT).map(|_| open(&slots).unwrap().0).collect();
    calls.iter().for_each(|call| assert_eq!(slots.forget(*call), Some(true)));
    assert!(slots.lock().ring.len() <= KEPT);
    assert!(slots.answer_one(calls[0], "late").unwrap().is_none());
    assert_eq!(slots.forget(calls[0]), None);
    assert!(open(&slots).unwrap().1);
}

/// If a waker holds the last reference to a task, dropping it drops the task's future, and calls in it.
#[test]
fn no_waker_is_dropped_under_the_lock() {
    struct Task(Arc<Words>, Arc<AtomicBool>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Task {
        fn drop(&mut self) {
            self.1.fetch_or(self.0.0.try_lock().is_none(), Ordering::Relaxed);
        }
    }

    let (slots, locked) = (Arc::new(slots(1)), Arc::new(AtomicBool::new(false)));
    let with_task = |act: &mut dyn FnMut(&TaskContext<'_>)| {
        let waker = Waker::from(Arc::new(Task(slots.clone(), locked.clone())));
        act(&TaskContext::from_waker(&waker));
    };
    let call = OnceLock::new();
    with_task(&mut |cx| call.set(slots.open(false, None, false, cx, |_| {}).unwrap().call).unwrap());
    let call = *call.get().unwrap();
    with_task(&mut |cx| assert!(slots.poll(call, false, cx).0.is_pending()));
    let mut ticket = None;
    with_task(&mut |cx| assert!(slots.wait_in_line(&mut ticket, cx).is_pending()));
    with_task(&mut |cx| assert!(slots.wait_in_line(&mut ticket, cx).is_pending()));
    slots.leave_line(ticket.unwrap()).wake();
    slots.forget(call).unwrap();
    slots.give_back().wake();
    assert!(!locked.load(Ordering::Relaxed));
}
