//! Callers that look for answers while they wait.

use std::sync::atomic::AtomicBool;

use farcall_core::transport::BusyPoll;

use super::*;

impl End {
    /// Sends a frame of each of these kinds, each in a message of its own.
    fn send_kinds(&self, kinds: &[FrameType]) {
        kinds.iter().for_each(|&kind| self.send_together(&[kind]));
    }

    /// Sends a message of frames of these kinds.
    fn send_together(&self, kinds: &[FrameType]) {
        let frames = kinds.iter().map(|&kind| {
            let mut frame = Frame::link(kind, vec![7; 64].into());
            frame.header.call = 1;
            frame
        });
        self.0.send(frames);
    }

    /// How many frames have been delivered since the last time.
    fn delivered(&mut self) -> usize {
        std::iter::from_fn(|| self.0.try_next()).count()
    }
}

const ANSWER: FrameType = FrameType::RESPONSE;
const REQUEST: FrameType = FrameType::REQUEST;

/// Between two awaits the drivers do nothing: what happens there is the helper's work.
#[tokio::test]
async fn helper_delivers_what_runs_no_handler() {
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    let shard = far.shard();
    for (kinds, by_helper) in [
        (&[ANSWER][..], 1),
        (&[ANSWER, ANSWER], 2),
        (&[ANSWER, ANSWER, REQUEST, ANSWER], 0),
        (&[REQUEST, ANSWER], 0),
    ] {
        until("the driver does not sleep", || fabric.queues_armed() == 4).await;
        a.send_kinds(kinds);
        assert_eq!(shard.poll_for_answers(), by_helper > 0, "{kinds:?}");
        assert_eq!(b.delivered(), by_helper, "{kinds:?}");
        assert!(!shard.poll_for_answers(), "the rest is the driver's: {kinds:?}");
        b.receive(kinds.len() - by_helper).await;
    }
}

#[tokio::test]
async fn helper_leaves_a_message_to_the_driver_that_is_not_all_answers() {
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    let shard = far.shard();
    for (kinds, by_helper) in [(&[ANSWER, ANSWER][..], 2), (&[ANSWER, REQUEST], 0), (&[REQUEST, ANSWER], 0)] {
        until("the driver does not sleep", || fabric.queues_armed() == 4).await;
        a.send_together(kinds);
        assert_eq!(shard.poll_for_answers(), by_helper > 0, "{kinds:?}");
        assert_eq!(b.delivered(), by_helper, "{kinds:?}");
        b.receive(kinds.len() - by_helper).await;
    }
}

#[tokio::test]
async fn helper_leaves_to_the_driver_what_waits_for_the_start_of_its_link() {
    let (fabric, [near, far]) = nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let (a, b) = tokio::try_join!(client.complete(1, Some(answer)), server.complete(1, None)).unwrap();
    let (a, shard) = (End::start(a), far.shard());
    until("the driver does not sleep", || fabric.queues_armed() == 4).await;
    a.send_kinds(&[REQUEST, ANSWER]);
    assert!(!shard.poll_for_answers());
    until("the driver does not take it", || shard.intake.try_lock().is_ok_and(|i| !i.is_ready())).await;
    let mut b = End::start(b);
    a.send_kinds(&[ANSWER]);
    assert!(!shard.poll_for_answers() && b.delivered() == 0);
    b.receive(3).await;
}

#[tokio::test]
async fn a_caller_polls_in_its_turn_and_not_in_vain() {
    let (_fabric, [near, far]) = nodes(1);
    let _ends = near.link(&far).await;
    let shard = near.shard();
    shard.polling.set_window(Duration::ZERO);
    assert_eq!(shard.busy_poll(Duration::ZERO), BusyPoll::Sleep);
    shard.polling.set_window(Duration::from_micros(50));
    assert_eq!(shard.busy_poll(Duration::ZERO), BusyPoll::Again);
    assert_eq!(shard.busy_poll(Duration::from_micros(1)), BusyPoll::Again);
    assert_eq!(shard.busy_poll(Duration::from_micros(50)), BusyPoll::Sleep);
    // Its turn has ended with that.
    assert_eq!(shard.busy_poll(Duration::ZERO), BusyPoll::Again);
    // Whoever has the intake is never waited for.
    let _intake = shard.intake();
    assert!(!shard.poll_for_answers());
}

/// Helpers come and go at every point of the driver's way to sleep, and what arrives does so at the worst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_slept_through_beside_helpers() {
    for spite in [false, true] {
        let (fabric, [near, far]) = nodes(1);
        let [a, mut b] = near.link(&far).await;
        fabric.set_spite(spite);
        let (shard, over) = (far.shard(), Arc::new(AtomicBool::new(false)));
        let helpers = [(); 2].map(|()| {
            let (shard, over) = (Arc::clone(&shard), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    shard.poll_for_answers();
                    std::thread::yield_now();
                }
            })
        });
        let mixes = [[ANSWER, REQUEST, ANSWER], [REQUEST, ANSWER, ANSWER], [ANSWER, ANSWER, ANSWER]];
        let rounds = if spite { 20 } else { 500 };
        // Until a helper was faster than the driver once, at least.
        let helped = || spite || shard.polling.found() > 0;
        for (round, mix) in mixes.iter().cycle().enumerate() {
            if round >= rounds && helped() {
                break;
            }
            a.send_kinds(mix);
            b.receive(3).await;
        }
        over.store(true, Ordering::Relaxed);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    }
}
