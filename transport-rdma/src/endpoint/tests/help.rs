//! Callers that look for answers while they wait.

use std::sync::atomic::AtomicBool;

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
        self.peer.outgoing.lock().unwrap().extend(frames);
        self.peer.writable();
    }

    /// How many frames have been delivered since the last time.
    fn delivered(&mut self) -> usize {
        std::iter::from_fn(|| self.log.try_recv().ok()).count()
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
        assert_eq!(shard.help(), by_helper > 0, "{kinds:?}");
        assert_eq!(b.delivered(), by_helper, "{kinds:?}");
        assert!(!shard.help(), "the rest is the driver's: {kinds:?}");
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
        assert_eq!(shard.help(), by_helper > 0, "{kinds:?}");
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
    assert!(!shard.help());
    until("the driver does not take it", || shard.intake.try_lock().is_ok_and(|i| !i.is_ready())).await;
    let mut b = End::start(b);
    a.send_kinds(&[ANSWER]);
    assert!(!shard.help() && b.delivered() == 0);
    b.receive(3).await;
}

#[tokio::test]
async fn one_caller_helps_at_a_time_and_none_in_vain() {
    let (_fabric, [near, far]) = nodes(1);
    let _ends = near.link(&far).await;
    let shard = near.shard();
    shard.helpers.set_window(Duration::ZERO);
    assert_eq!(shard.begin_help(), None);
    let window = Duration::from_micros(50);
    shard.helpers.set_window(window);
    assert_eq!((shard.begin_help(), shard.begin_help()), (Some(window), None));
    shard.end_help();
    assert_eq!(shard.begin_help(), Some(window));
    // Whoever has the intake is never waited for.
    let _intake = shard.intake();
    assert!(!shard.help());
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
                    shard.help();
                    std::thread::yield_now();
                }
            })
        });
        let mixes = [[ANSWER, REQUEST, ANSWER], [REQUEST, ANSWER, ANSWER], [ANSWER, ANSWER, ANSWER]];
        let rounds = if spite { 20 } else { 500 };
        // Until a helper was faster than the driver once, at least.
        let helped = || spite || shard.helpers.found() > 0;
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
