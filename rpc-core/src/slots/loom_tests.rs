//! Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-core --lib loom`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use loom::sync::{Arc, Mutex};
use loom::thread;
use tokio::time::Instant;

use super::{OpenError, SlotOutcome, Slots, Ticket};

/// The slots, and the queue of messages.
struct World {
    slots: Slots<&'static str, &'static str>,
    queue: Mutex<Vec<u64>>,
}

impl World {
    fn new(places: usize) -> Arc<Self> {
        let world = Self { slots: Slots::new(), queue: Mutex::default() };
        world.slots.admit(places);
        Arc::new(world)
    }

    fn call(&self, deadline: Option<Instant>, task: &Task) -> Result<u64, OpenError<&'static str>> {
        let queue = |call| self.queue.lock().unwrap().push(call);
        task.run(|cx| self.slots.open(false, deadline, false, cx, queue).map(|opened| opened.call))
    }

    fn wait(&self, ticket: &mut Option<Ticket>, task: &Task) -> Poll<Result<(), &'static str>> {
        task.run(|cx| self.slots.wait_in_line(ticket, cx))
    }

    /// Closes the slots and ends waiting calls. Returns the calls whose callers were woken.
    fn close(&self) -> Vec<u64> {
        self.slots.close("closed").into_iter().for_each(Waker::wake);
        let ended = self.slots.waiting_after(0).into_iter();
        ended.filter(|call| self.slots.end(*call, "closed").map(Waker::wake).is_some()).collect()
    }
}

/// A task of the test, which counts how often it is woken.
#[derive(Clone, Default)]
struct Task(std::sync::Arc<Woken>);

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task {
    fn run<R>(&self, poll: impl FnOnce(&TaskContext<'_>) -> R) -> R {
        poll(&TaskContext::from_waker(&Waker::from(self.0.clone())))
    }

    fn woken(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }
}

impl World {
    fn give_up(&self, call: u64) {
        if self.slots.forget(call).is_some() {
            self.slots.give_back().wake();
        }
    }
}

fn spawn<R: 'static>(
    world: &Arc<World>,
    act: impl FnOnce(&World) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let world = Arc::clone(world);
    thread::spawn(move || act(&world))
}

#[test]
fn a_call_has_one_end() {
    loom::model(|| {
        let world = World::new(1);
        let call = world.call(None, &Task::default()).unwrap();
        let answered =
            spawn(&world, move |w| w.slots.answer_one(call, "answer").unwrap().map(Waker::wake).is_some());
        let forgotten = spawn(&world, move |w| w.slots.forget(call) == Some(true));
        let closed = world.close() == [call];
        let ends = [closed, answered.join().unwrap(), forgotten.join().unwrap()];
        assert_eq!(ends.into_iter().filter(|ended| *ended).count(), 1);
        assert!(world.slots.is_empty());
    });
}

#[test]
fn a_caller_is_told_once_whether_its_call_was_answered_or_is_late() {
    loom::model(|| {
        let (world, task) = (World::new(1), Task::default());
        let now = Instant::now();
        let call = world.call(Some(now), &task).unwrap();
        let peer = spawn(&world, move |w| {
            w.slots.answer_one(call, "answer").unwrap().into_iter().for_each(Waker::wake)
        });
        let clock = spawn(&world, move |w| w.slots.find_late(now).0.into_iter().for_each(Waker::wake));
        let poll = || task.run(|cx| world.slots.poll(call, false, cx).0);
        let mut found = poll();
        peer.join().unwrap();
        clock.join().unwrap();
        assert_eq!(task.woken(), 1);
        if found.is_pending() {
            found = poll();
        }
        match found {
            Poll::Ready(SlotOutcome::End("answer")) => {}
            // In this case the peer need not be told, if its answer arrived before the lateness was noticed.
            Poll::Ready(SlotOutcome::Late) => _ = world.slots.forget(call),
            other => panic!("it was woken for {other:?}"),
        }
        assert!(world.slots.is_empty());
    });
}

#[test]
fn a_caller_that_looks_first_finds_its_answer_or_is_woken_for_it() {
    loom::model(|| {
        let (world, task) = (World::new(1), Task::default());
        let call = task.run(|cx| world.slots.open(false, None, true, cx, |_| {}).unwrap().call);
        let peer = spawn(&world, move |w| {
            w.slots.answer_one(call, "answer").unwrap().into_iter().for_each(Waker::wake)
        });
        let poll = || task.run(|cx| world.slots.poll(call, false, cx).0);
        let found = poll();
        peer.join().unwrap();
        assert_eq!(task.woken(), usize::from(found.is_pending()));
        let found = if found.is_pending() { poll() } else { found };
        assert_eq!(found, Poll::Ready(SlotOutcome::End("answer")));
    });
}

#[test]
fn a_call_made_while_the_connection_ends_is_refused_or_ended_with_its_message_there_to_be_taken_back() {
    loom::model(|| {
        let world = World::new(1);
        let caller = spawn(&world, |w| w.call(None, &Task::default()));
        let ended = world.close();
        let queued = world.queue.lock().unwrap().clone();
        match caller.join().unwrap() {
            Ok(call) => assert!(ended == [call] && queued == [call]),
            Err(why) => assert!(ended.is_empty() && queued.is_empty() && why == OpenError::For("closed")),
        }
    });
}

#[test]
fn a_place_that_is_left_goes_to_the_next_in_line_and_to_nobody_else() {
    loom::model(|| {
        let world = World::new(1);
        let (first, second) = (Task::default(), Task::default());
        let call = world.call(None, &first).unwrap();
        let (mut tickets, patient) = ([None, None], second.clone());
        assert!(world.wait(&mut tickets[0], &first).is_pending());
        assert!(world.wait(&mut tickets[1], &second).is_pending());
        let [mut ticket, mut last] = tickets;

        let done = spawn(&world, move |w| w.give_up(call));
        let leaves = spawn(&world, move |w| match w.wait(&mut ticket, &first) {
            Poll::Ready(waited) => {
                assert_eq!((waited, ticket), (Ok(()), None));
                w.slots.give_back().wake();
            }
            Poll::Pending => w.slots.leave_line(ticket.unwrap()).wake(),
        });
        assert_eq!(world.call(None, &Task::default()), Err(OpenError::Full), "it overtakes those in line");
        done.join().unwrap();
        leaves.join().unwrap();

        assert_eq!((patient.woken(), world.wait(&mut last, &second)), (1, Poll::Ready(Ok(()))));
        assert_eq!(world.call(None, &Task::default()), Err(OpenError::Full), "it is given twice");
        world.slots.give_back().wake();
        assert!(world.call(None, &Task::default()).is_ok(), "it is lost");
    });
}

#[test]
fn a_caller_in_line_when_the_connection_ends_hears_of_it() {
    loom::model(|| {
        let (world, task) = (World::new(1), Task::default());
        let call = world.call(None, &Task::default()).unwrap();
        let done = spawn(&world, move |w| w.give_up(call));
        let closes = spawn(&world, |w| _ = w.close());
        let mut ticket = None;
        let waited = world.wait(&mut ticket, &task);
        done.join().unwrap();
        closes.join().unwrap();
        match waited {
            Poll::Pending => {
                assert!(task.woken() > 0);
                assert_eq!(world.wait(&mut ticket, &task), Poll::Ready(Err("closed")));
                world.slots.leave_line(ticket.unwrap()).wake();
            }
            Poll::Ready(Ok(())) => world.slots.give_back().wake(),
            Poll::Ready(Err(why)) => assert_eq!((why, ticket), ("closed", None)),
        }
        assert_eq!(world.slots.lock().taken, 0);
    });
}
