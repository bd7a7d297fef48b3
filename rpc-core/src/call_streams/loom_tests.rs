//! Every interleaving of a task that sends a stream, a task that flushes the queue, and frames of the peer:
//! `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-core --lib loom`.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Wake, Waker};

use bytes::{Bytes, BytesMut};
use loom::sync::Arc;
use loom::thread;

use super::call::{CallStreams, Ended, Room};
use crate::compress::Unpacking;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::wire::{FrameType, Stop, Window};
use crate::reply::Reply;
use crate::session::{Absorb, CombiningQueue, Queued, Role, SentCalls};

/// The queue of messages.
#[derive(Default)]
struct Queue(Vec<Message>);

impl Queued for Queue {
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// An outbox and a link: messages are sent whenever a thread feeds them.
#[derive(Default)]
struct Link {
    waiting: Vec<Message>,
    sent: Vec<FrameType>,
}

impl Absorb<Queue> for Link {
    fn absorb(&mut self, queue: &mut Queue) {
        self.waiting.append(&mut queue.0);
    }
}

/// Two streams of a server, and their way out. Most tests use the first.
struct World {
    streams: CallStreams,
    other: CallStreams,
    sent: SentCalls,
    sending: CombiningQueue<Queue, Link>,
}

const CALL: u64 = 1;
const OTHER: u64 = 2;

impl World {
    /// Returns streams whose peer accepts this many items at first.
    fn new(items: u64) -> Arc<Self> {
        let granted = Some(Window { items, bytes: 1 << 20 });
        let unpacking = Unpacking::new(1 << 20, 1 << 20);
        let [streams, other] = [CALL, OTHER]
            .map(|call| CallStreams::new(Weak::new(), call, Role::Server, granted, None, unpacking.clone()));
        Arc::new(Self {
            streams,
            other,
            sent: SentCalls::default(),
            sending: CombiningQueue::new(Link::default()),
        })
    }

    fn enqueue(&self, message: Message) -> usize {
        self.sending.push(|queue| queue.0.push(message))
    }

    fn stream(&self, call: u64) -> &CallStreams {
        if call == CALL { &self.streams } else { &self.other }
    }

    fn send_item(&self, call: u64, is_long: bool) {
        let mut item = Message::new(FrameType::ITEM, call, Bytes::from_static(b"item"));
        if is_long {
            item.hold_back();
        }
        self.stream(call).send(1, item, true, |item| self.enqueue(item));
    }

    /// Flushes the way a connection does.
    fn flush(&self) {
        self.sending.run(|link| {
            // Short messages overtake long ones.
            let is_long = Message::holds_back;
            let (long, short): (Vec<_>, Vec<_>) =
                std::mem::take(&mut link.waiting).into_iter().partition(is_long);
            link.sent.extend(short.iter().chain(&long).map(|message| message.kind));
            if !long.is_empty() {
                self.sent.note(long.iter().map(|message| message.call).collect());
            }
        });
        if self.sent.any() {
            for call in self.sent.take() {
                let (waker, reply) = self.stream(call).has_left();
                waker.into_iter().for_each(Waker::wake);
                reply.into_iter().for_each(|reply| self.complete(reply));
            }
        }
    }

    /// Completes the call the way `Dispatch` does.
    fn complete(&self, reply: Reply) {
        if self.streams.keep_reply(reply).is_ok() {
            return;
        }
        if self.streams.end_sending().is_some() {
            self.enqueue(Message::new(FrameType::END, CALL, Bytes::new()));
        }
        self.flush();
    }

    fn frame(&self, kind: FrameType, encode: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        encode(&mut bytes);
        let mut wakers = Vec::new();
        self.streams.take(kind, bytes.freeze(), &mut wakers).unwrap();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn sent(&self) -> Vec<FrameType> {
        self.sending.inspect_only(|link| link.sent.clone())
    }
}

/// The task that sends the stream.
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

    fn is_woken(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) > 0
    }
}

fn spawn(world: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || act(&world))
}

/// Runs a model. A lost wake-up needs one or two preemptions; with a higher bound, three threads take for ever.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

/// Checks that a task can continue. `look` says whether it may, while `others` act. If it is told to wait, it must be
/// woken, and may continue then.
fn goes_on(others: Vec<thread::JoinHandle<()>>, look: impl Fn(&TaskContext<'_>) -> bool) {
    let task = Task::default();
    let goes_on = task.run(&look);
    others.into_iter().for_each(|other| other.join().unwrap());
    if !goes_on {
        assert!(task.is_woken(), "it waits for ever");
        assert!(task.run(look), "it was woken for nothing");
    }
}

#[test]
fn a_waiter_for_an_item_to_leave_is_woken_whichever_thread_sends_it() {
    model(|| {
        let world = World::new(10);
        world.send_item(CALL, true);
        let others = vec![spawn(&world, World::flush), spawn(&world, World::flush)];
        goes_on(others, |cx| matches!(world.streams.room(cx), Room::Items(9)));
    });
    model(|| {
        let world = World::new(10);
        world.send_item(CALL, true);
        let others = vec![spawn(&world, World::flush)];
        goes_on(others, |cx| world.streams.is_free(cx));
    });
}

#[test]
fn of_several_that_wait_all_are_woken() {
    model(|| {
        let world = World::new(10);
        let send = |call| {
            move |world: &World| {
                world.send_item(call, true);
                world.flush();
            }
        };
        let others = [spawn(&world, send(CALL)), spawn(&world, send(OTHER))];
        others.into_iter().for_each(|other| other.join().unwrap());
        let task = Task::default();
        for call in [CALL, OTHER] {
            let room = task.run(|cx| world.stream(call).room(cx));
            assert_eq!(room, Room::Items(9), "{call} waits for ever");
        }
    });
}

#[test]
fn a_waiter_for_a_window_is_woken_when_it_comes() {
    model(|| {
        let world = World::new(1);
        world.send_item(CALL, true);
        let window = Window { items: 2, bytes: 1 << 20 };
        let others = vec![
            spawn(&world, World::flush),
            spawn(&world, move |world| world.frame(FrameType::WINDOW, |out| window.encode(out))),
        ];
        goes_on(others, |cx| matches!(world.streams.room(cx), Room::Items(1)));
    });
}

#[test]
fn a_waiter_for_items_hears_that_nobody_wants_them() {
    let stopped: fn(&World) = |world| world.frame(FrameType::STOP, |out| Stop { reason: 0 }.encode(out));
    let over: fn(&World) = |world| world.streams.end(Ended::gave_up()).into_iter().for_each(Waker::wake);
    for end in [stopped, over] {
        model(move || {
            let world = World::new(10);
            let others = vec![spawn(&world, end)];
            goes_on(others, |cx| !world.streams.watch(cx));
        });
        // Also while an item is on its way.
        model(move || {
            let world = World::new(10);
            world.send_item(CALL, true);
            let others = vec![spawn(&world, end), spawn(&world, World::flush)];
            goes_on(others, |cx| world.streams.room(cx) != Room::Wait);
        });
    }
}

#[test]
fn an_end_leaves_once_and_after_the_items() {
    model(|| {
        let world = World::new(10);
        world.send_item(CALL, false);
        world.send_item(CALL, true);
        let others = [spawn(&world, World::flush), spawn(&world, World::flush)];
        world.complete(Reply::Ok(Payload::default()));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.sent(), [FrameType::ITEM, FrameType::ITEM, FrameType::END]);
    });
}

#[test]
fn a_stream_stopped_while_it_is_queued_ends_all_the_same() {
    model(|| {
        let world = World::new(10);
        let stops = spawn(&world, |world| world.frame(FrameType::STOP, |out| Stop { reason: 0 }.encode(out)));
        let flushes = spawn(&world, World::flush);
        world.send_item(CALL, true);
        world.complete(Reply::Ok(Payload::default()));
        world.flush();
        for other in [stops, flushes] {
            other.join().unwrap();
        }
        let sent = world.sent();
        assert!(sent == [FrameType::ITEM, FrameType::END] || sent == [FrameType::END], "{sent:?}");
    });
}
