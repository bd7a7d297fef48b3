//! Scenarios that hold on every device, simulated or not.

use std::collections::VecDeque;
use std::future::poll_fn;

use bytes::Bytes;
use farcall_rdma::testing::device::*;
use farcall_rdma::testing::verbs;

use super::{Machine, SIZE, SLOT, connect, failure, reap, received, request};

pub(crate) fn ping_pong_by_polling(machine: Machine) {
    let (a, b) = machine.pair(8);
    assert!(a.qp.inline() >= 220, "inline {}", a.qp.inline());
    for len in [0, 1, 64, 221, SLOT] {
        for round in 0..100u8 {
            a.send(a.message(len, round));
            let ping = received(b.poll(Cq::Receive, 1).remove(0));
            assert_eq!(ping.len(), len);
            assert!(ping.iter().all(|&byte| byte == round));
            // A message that has arrived can be sent on as it is.
            b.send(ping);
            let pong = received(a.poll(Cq::Receive, 1).remove(0));
            assert_eq!(pong.len(), len);
            assert!(pong.iter().all(|&byte| byte == round));
            drop(pong);
            a.post_receives(1);
            b.post_receives(1);
            reap(&a);
            reap(&b);
        }
    }
}

pub(crate) fn ping_pong_by_events(machine: Machine) {
    let (a, b) = machine.pair(8);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut on_a, mut on_b) = (a.queues.channel().unwrap(), b.queues.channel().unwrap());
        for len in [64, SLOT] {
            // More rounds than events are acknowledged at a time.
            for round in 0..200u8 {
                a.send(a.message(len, round));
                let ping = received(b.wait(&mut *on_b, Cq::Receive).await);
                b.send(ping);
                let pong = received(a.wait(&mut *on_a, Cq::Receive).await);
                assert!(pong.len() == len && pong.iter().all(|&byte| byte == round));
                drop(pong);
                a.post_receives(1);
                b.post_receives(1);
                reap(&a);
                reap(&b);
            }
        }
    });
}

pub(crate) fn completion_before_arming_makes_no_event(machine: Machine) {
    let (a, b) = machine.pair(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut channel = b.queues.channel().unwrap();
        let parts = [a.message(64, 1), Bytes::new()];
        let signaled = Work::Send { parts, signaled: true, solicited: false };
        a.qp.post(&mut VecDeque::from([signaled])).unwrap();
        // The acknowledgement says that the message is in b's completion queue, which is not armed.
        assert!(matches!(a.poll(Cq::Send, 1)[0], Completion::Sent { count: 1, .. }));
        b.queues.arm(Cq::Receive, false).unwrap();
        let event = poll_fn(|cx| std::task::Poll::Ready(channel.poll_event(cx).is_ready())).await;
        assert!(!event, "arming reports what was there before, so that polling after it is not necessary");
        // The next one makes the event, and both are there.
        a.send(a.message(64, 2));
        let first = received(b.wait(&mut *channel, Cq::Receive).await);
        let second = received(b.wait(&mut *channel, Cq::Receive).await);
        assert_eq!((first[0], second[0]), (1, 2));
    });
}

pub(crate) fn missing_receive_fails_the_send_at_once(machine: Machine) {
    let (a, _b) = machine.pair(0);
    a.send(a.message(64, 1));
    assert_eq!(failure(a.poll(Cq::Send, 1).remove(0)), WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(a.drain().0, 0);
}

pub(crate) fn missing_peer_fails_the_send_after_its_retries(machine: Machine) {
    let (a, b) = machine.pair(4);
    drop(b.qp);
    a.send(a.message(64, 1));
    assert_eq!(failure(a.poll(Cq::Send, 1).remove(0)), WcStatus::RETRY_EXC_ERR);
}

pub(crate) fn marker_comes_after_every_outstanding_send(machine: Machine) {
    let before = machine.free();
    let (a, b) = machine.pair(0);
    drop(b.qp);
    // Not inline, so that the queue keeps their slots; no completion was asked for of most of them.
    let mut requests: VecDeque<_> = (0..10).map(|i| request(a.message(1024, i))).collect();
    assert_eq!(a.qp.post(&mut requests).unwrap(), 10);
    assert_eq!(machine.free(), before - 10);
    assert!(matches!(a.qp.post_marker(), Err(PostError::Misplaced)), "in RTS the peer would get it");
    let (count, failures) = a.drain();
    assert_eq!(count, 10, "{failures:?}");
    assert!(
        failures.iter().all(|&s| matches!(s, WcStatus::WR_FLUSH_ERR | WcStatus::RETRY_EXC_ERR)),
        "{failures:?}"
    );
    assert_eq!(a.qp.sends_outstanding(), 0);
    assert_eq!(machine.free(), before);
    assert!(matches!(a.qp.post_marker(), Err(PostError::Misplaced)), "a second one");
}

pub(crate) fn completions_are_asked_for_every_so_often(machine: Machine) {
    let size = QpSize { signal_every: 8, ..SIZE };
    let (a, b) = (machine.end_of_size(0, size), machine.end(16));
    connect(&a, &b, &machine.tuning());
    for i in 0..7 {
        a.send(a.message(1024, i));
    }
    assert_eq!(b.poll(Cq::Receive, 7).len(), 7);
    assert_eq!(a.queues.poll(Cq::Send, 8, &mut Vec::new()).unwrap(), 0);
    assert_eq!(a.qp.sends_outstanding(), 7);
    a.send(a.message(1024, 7));
    assert!(matches!(a.poll(Cq::Send, 1)[0], Completion::Sent { count: 8, .. }));
    assert_eq!(a.qp.sends_outstanding(), 0);
}

pub(crate) fn full_send_queue_takes_what_fits(machine: Machine) {
    let size = QpSize { sends: 4, signal_every: 2, inline: 0 };
    let (a, b) = (machine.end_of_size(0, size), machine.end(8));
    connect(&a, &b, &machine.tuning());
    let mut requests: VecDeque<_> = (0..6).map(|i| request(a.message(512, i))).collect();
    assert_eq!(a.qp.post(&mut requests).unwrap(), 4);
    assert_eq!(requests.len(), 2);
    assert_eq!(a.qp.post(&mut requests).unwrap(), 0);
    a.poll(Cq::Send, 2);
    assert_eq!(a.qp.post(&mut requests).unwrap(), 2);
    let order: Vec<u8> = b.poll(Cq::Receive, 6).into_iter().map(|c| received(c)[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}

pub(crate) fn copied_messages_arrive_between_others(machine: Machine) {
    let size = QpSize { sends: 4, signal_every: 2, inline: 64 };
    let (a, b) = (machine.end_of_size(0, size), machine.end(8));
    connect(&a, &b, &machine.tuning());
    let too_long = vec![0; a.qp.inline() as usize + 1];
    assert_eq!(a.qp.send_copy(&too_long), Err(PostError::TooLong));
    let mut copied = vec![0; 64];
    assert_eq!(a.qp.send_copy(&copied), Ok(true));
    // It was copied, and may be written to.
    copied.fill(9);
    a.send(a.message(512, 1));
    for fill in [2, 3] {
        assert_eq!(a.qp.send_copy(&[fill; 64]), Ok(true));
    }
    assert_eq!(a.qp.send_copy(&[4; 64]), Ok(false), "the send queue is full");
    a.poll(Cq::Send, 2);
    assert_eq!(a.qp.send_copy(&[4; 64]), Ok(true));
    let order: Vec<u8> = b.poll(Cq::Receive, 5).into_iter().map(|c| received(c)[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

pub(crate) fn message_of_two_parts_arrives_as_one(machine: Machine) {
    let (a, b) = machine.pair(4);
    for (head, body) in [(20, 100), (20, 4000), (0, 4000), (300, 0)] {
        let parts = [a.message(head, 1), a.message(body, 2)];
        a.qp.post(&mut VecDeque::from([Work::Send { parts, signaled: false, solicited: true }])).unwrap();
        let got = received(b.poll(Cq::Receive, 1).remove(0));
        assert_eq!(got.len(), head + body);
        assert!(got[..head].iter().all(|&byte| byte == 1) && got[head..].iter().all(|&byte| byte == 2));
    }
}

pub(crate) fn only_small_messages_may_lie_anywhere(machine: Machine) {
    let (a, b) = machine.pair(4);
    let heap = |len: usize| request(Bytes::from(vec![5; len]));
    let mut requests = VecDeque::from([heap(64), heap(4096), heap(64)]);
    assert_eq!(a.qp.post(&mut requests).unwrap(), 1);
    assert_eq!(a.qp.post(&mut requests), Err(PostError::NotRegistered));
    assert_eq!(requests.len(), 2);
    assert_eq!(received(b.poll(Cq::Receive, 1).remove(0)), vec![5; 64]);
}

pub(crate) fn message_larger_than_a_slot_fails_both_ends(machine: Machine) {
    let (a, b) = machine.pair(2);
    let parts = [a.message(SLOT, 1), a.message(SLOT, 2)];
    a.qp.post(&mut VecDeque::from([Work::Send { parts, signaled: true, solicited: false }])).unwrap();
    assert_eq!(failure(a.poll(Cq::Send, 1).remove(0)), WcStatus::REM_OP_ERR);
    let status = failure(b.poll(Cq::Receive, 1).remove(0));
    assert!([WcStatus::LOC_QP_OP_ERR, WcStatus::LOC_LEN_ERR].contains(&status), "{status}");
}

pub(crate) fn posting_before_the_connection_is_refused(machine: Machine) {
    let before = machine.free();
    let a = machine.end(0);
    let mut requests = VecDeque::from([request(a.message(1024, 1)), request(a.message(1024, 2))]);
    let error = a.qp.post(&mut requests).unwrap_err();
    assert!(matches!(&error, PostError::Device(e) if e.operation == "ibv_post_send"), "{error:?}");
    assert_eq!((requests.len(), a.qp.sends_outstanding()), (2, 0));
    drop(requests);
    assert_eq!(machine.free(), before);
}

pub(crate) fn send_completion_queue_cannot_be_oversubscribed(machine: Machine) {
    let queues = machine.device.create_queues(QueueSize { receives: 8, sends: 2 * SIZE.reserve() }).unwrap();
    let first = queues.create_qp(SIZE).unwrap();
    let _second = queues.create_qp(SIZE).unwrap();
    assert!(matches!(queues.create_qp(SIZE), Err(CreateQpError::CqBudget)));
    drop(first);
    queues.create_qp(SIZE).unwrap();
    let mut slots: Vec<_> = (0..9).map(|_| machine.slab.take().unwrap()).collect();
    assert_eq!(queues.post_receives(&mut slots).unwrap(), 8);
    assert_eq!((slots.len(), queues.receives_posted()), (1, 8));
}

pub(crate) fn undrained_queue_pair_leaves_nothing_behind(machine: Machine) {
    let before = machine.free();
    {
        let (a, mut b) = machine.pair(8);
        a.send_and_await(5);
        // Five receives have completed; nobody has polled them, and nobody will.
        b.qp.to_err().unwrap();
        b.qp = b.queues.create_qp(SIZE).unwrap();
        assert_eq!(b.queues.poll(Cq::Receive, 16, &mut Vec::new()).unwrap(), 0);
        // All eight are there for the next queue pair.
        b.qp.to_init(&b.path).unwrap();
        let a = machine.end(0);
        connect(&a, &b, &machine.tuning());
        a.send_and_await(8);
        assert_eq!(b.poll(Cq::Receive, 8).len(), 8);
        assert_eq!(b.queues.receives_posted(), 0);
    }
    assert_eq!(machine.free(), before);
    assert_eq!(verbs::leaks(), 0);
}

pub(crate) fn views_outlive_the_device(machine: Machine) {
    let (a, b) = machine.pair(2);
    a.send(a.message(4096, 9));
    let view = received(b.poll(Cq::Receive, 1).remove(0));
    drop((a, b, machine));
    assert!(view.len() == 4096 && view.iter().all(|&byte| byte == 9));
    assert_eq!(verbs::leaks(), 0);
}
