//! The pump of a stream, which passes items to the connection: as they come, several together, and within the peer's
//! window.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::task::coop;

use super::call::{CallStreams, Room};
use super::items_by::ItemsBy;
use super::outgoing_window::Polling;
use super::poll_share;
use crate::buffer_pool;
use crate::compress::Compression;
use crate::context::Context;
use crate::metadata::AnswerMetadata;
use crate::payload::{Encoder, Payload};
use crate::proto::message::{Head, Message};
use crate::proto::wire::{Batch, Content, EndHead, FrameType, ItemHead, ResponseHead, ResponseKind, TooLong};
use crate::refusal::too_large;
use crate::reply::{Reply, panicked};
use crate::session::{Role, Sender, Terms};
use crate::status::{Blame, Code, Executed, Status};

/// How many bytes of items are sent together. Less costs more turns of both sides, more does not fit into a frame of
/// TCP.
const TOGETHER: usize = 128 << 10;

/// How many bytes of long items are sent together if the peer reads them itself, which takes a round trip each time.
const READ: usize = 1 << 20;

/// The length in bytes from which an item is long.
const LONG_ITEM: usize = 16 << 10;

/// The bytes of short items from which a message is assumed to be followed by another one.
const MANY: usize = 16 << 10;

/// The room of a buffer for many short items, in bytes.
const MANY_ITEMS: usize = 144 << 10;

/// An upper bound for the bytes in front of the items, with room for the lengths of a few attachments.
const HEAD: u64 = 64;

/// The source of a stream's items.
pub(crate) trait Source: Send {
    /// Encodes the next item. `Err` ends the stream with this reply, and what was written is ignored.
    fn poll_next(&mut self, cx: &mut TaskContext<'_>, out: &mut Encoder) -> Poll<Option<Result<(), Reply>>>;
}

/// How sending a stream has ended. Nothing is on its way any more that the END could overtake.
#[derive(Debug)]
pub(crate) enum Pumped {
    /// All items were sent.
    Done,
    /// The source has failed.
    Failed(Reply),
    /// The peer wants no more, or the call is over.
    Closed,
}

/// A task-driven sender of a stream. It must be polled until it is done; dropping it leaves the stream without an end.
#[derive(Debug)]
pub(crate) struct Pump<S> {
    streams: Arc<CallStreams>,
    source: Option<S>,
    /// Whether the source was asked for items.
    begun: bool,
    /// Server: whether the answer has not begun. It begins when the source has been asked for the first item, so that
    /// metadata which the source sets are sent before it. If the source can't be asked, it begins at once.
    is_new: bool,
    /// The item that did not fit into the last message, and its compression.
    next: Option<(Payload, Option<Compression>)>,
    by: ItemsBy,
    /// Whether the last message was full of short items, as the next probably is.
    many: bool,
    /// Whether the peer reads the last message itself.
    is_read: bool,
    /// The next message and its number of items, made while the peer reads the last one.
    ahead: Option<(u64, Message)>,
    end: Option<Pumped>,
}

impl<S: Source> Pump<S> {
    pub(crate) fn new(streams: Arc<CallStreams>, source: S, by: ItemsBy) -> Self {
        let (begun, many, is_read) = (false, false, false);
        let is_new = matches!(by, ItemsBy::Answer(_));
        let source = Some(source);
        Self { streams, source, begun, is_new, next: None, by, many, is_read, ahead: None, end: None }
    }

    pub(crate) fn streams(&self) -> &Arc<CallStreams> {
        &self.streams
    }

    /// Replaces the streams to send by, if nothing was taken from the source yet.
    pub(crate) fn send_by(&mut self, streams: &Arc<CallStreams>) {
        if !self.begun {
            self.streams.clone_from(streams);
        }
    }

    /// Whether anything was taken from the source.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Pumped> {
        loop {
            // Yields to other tasks, however fast the source and the peer are.
            let budget = ready!(coop::poll_proceed(cx));
            let room = self.streams.room(cx);
            if self.is_new && !matches!(room, Room::Items(_)) {
                self.begin_answer();
            }
            let (room, may_send) = match room {
                Room::Items(room) => (room, true),
                // Making the next message takes about as long as a part of the READ.
                Room::Later(room) if self.is_read && self.is_empty() && self.end.is_none() => (room, false),
                Room::Later(_) | Room::Wait if self.end.is_none() || !self.is_empty() => {
                    return Poll::Pending;
                }
                Room::Closed => {
                    let end = self.end.take().unwrap_or(Pumped::Closed);
                    self.end_with(end);
                    (0, true)
                }
                Room::Later(_) | Room::Wait => (0, true),
            };
            if self.end.is_some() && self.is_empty() {
                if !self.streams.is_free(cx) {
                    return Poll::Pending;
                }
                return Poll::Ready(self.end.take().unwrap_or(Pumped::Closed));
            }
            let Some(table) = self.streams.table() else { return Poll::Ready(Pumped::Closed) };
            let sender = &*table.sender;
            let was_new = self.is_new;
            let waits = self.ahead.is_none() && self.fill(sender, room, cx);
            if was_new && self.ahead.is_some() {
                // The beginning of the answer, which was queued meanwhile, may hold back the first items.
                budget.made_progress();
                continue;
            }
            if may_send && let Some((count, message)) = self.ahead.take() {
                self.send(sender, count, message);
            }
            budget.made_progress();
            if waits && self.ahead.is_none() && self.streams.watch(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Whether everything that was taken from the source has been sent.
    fn is_empty(&self) -> bool {
        self.next.is_none() && self.ahead.is_none()
    }

    /// Makes one message of the items that the source has. Returns true if it has no more now.
    fn fill(&mut self, sender: &Sender, room: u64, cx: &mut TaskContext<'_>) -> bool {
        let many = self.many.then(|| buffer_pool::take(MANY_ITEMS).ok()).flatten();
        let size = many.as_ref().map_or(0, BytesMut::capacity);
        let (mut batch, mut by) = (Batch::new(many.map_or_else(Encoder::new, Encoder::to)), None);
        let polling = Polling::of(&self.streams);
        // After a panic, the items before it are still sent, and the stream needs an end.
        let put = catch_unwind(AssertUnwindSafe(|| self.put_items(sender, room, &mut batch, &mut by, cx)));
        drop(polling);
        let waits = put.unwrap_or_else(|panic| {
            batch.undo();
            if self.is_new {
                self.begin_answer();
            }
            self.source = None;
            self.end = Some(Pumped::Failed(stopped_by(&*panic, sender.terms().role)));
            false
        });
        if batch.is_empty() {
            buffer_pool::give(batch.into_buffer(), size);
        } else {
            let count = batch.count().into();
            let (head, payload) = match size {
                0 => batch.finish(),
                _ => batch.finish_with(|buffer| buffer_pool::share(buffer, size)),
            };
            self.many = payload.body_len() >= MANY;
            self.make(sender, count, head, sender.terms().compress(by, payload));
        }
        waits
    }

    /// Puts items together that have the same compression. An item that must go by itself becomes a message if it is
    /// the first.
    #[inline(never)]
    fn put_items(
        &mut self,
        sender: &Sender,
        room: u64,
        batch: &mut Batch,
        batch_by: &mut Option<Compression>,
        cx: &mut TaskContext<'_>,
    ) -> bool {
        let most = sender.terms().max_message().saturating_sub(HEAD);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let room = u32::try_from(room).unwrap_or(u32::MAX).min(Batch::MOST);
        let mut limit = TOGETHER;
        while batch.count() < room && batch.len() < limit {
            let before = batch.len();
            if poll_share(batch.count().into(), cx).is_pending() {
                return true;
            }
            if self.next.is_none() {
                match self.poll_source(cx, batch.write()) {
                    Poll::Ready(true) => {
                        let by = self.by.now();
                        let goes_along = batch.is_empty() || by == *batch_by;
                        if goes_along && batch.keep(most) {
                            *batch_by = by;
                        } else {
                            self.next = Some((batch.take_off(), by));
                        }
                    }
                    ended => {
                        batch.undo();
                        return ended.is_pending();
                    }
                }
            }
            if self.next.is_some() && !self.put_next(sender, most, batch, batch_by) {
                break;
            }
            if batch.len() - before >= LONG_ITEM && limit < READ && sender.upgraded().is_some() {
                limit = READ;
            }
        }
        false
    }

    /// Puts the item that did not fit into the last message. Returns false if it does not fit again, or became a
    /// message.
    #[cold]
    fn put_next(
        &mut self,
        sender: &Sender,
        most: usize,
        batch: &mut Batch,
        batch_by: &mut Option<Compression>,
    ) -> bool {
        let Some((item, by)) = self.next.take() else { return true };
        // An item in several pieces is sent by reference, and so by itself.
        let in_pieces = !item.more().is_empty();
        let goes_along = !in_pieces && (batch.is_empty() || by == *batch_by);
        let fits = goes_along && batch.len() + Batch::needs(&item) <= most;
        if !fits && batch.is_empty() {
            self.make(sender, 1, ItemHead::default(), sender.terms().compress(by, item));
            return false;
        }
        if !fits || !batch.has_room(item.attachments().len()) {
            self.next = Some((item, by));
            return false;
        }
        *batch_by = by;
        batch.put(&item);
        true
    }

    /// Encodes the next item. Returns false if there is none, and records why.
    fn poll_source(&mut self, cx: &mut TaskContext<'_>, out: &mut Encoder) -> Poll<bool> {
        let Some(source) = &mut self.source else { return Poll::Ready(false) };
        self.begun = true;
        let polled = source.poll_next(cx, out);
        if self.is_new && !self.begin_answer() {
            return Poll::Ready(false);
        }
        let end = match ready!(polled) {
            Some(Ok(())) => return Poll::Ready(true),
            Some(Err(reply)) => Pumped::Failed(reply),
            None => Pumped::Done,
        };
        self.end = Some(end);
        self.source = None;
        Poll::Ready(false)
    }

    /// Begins the answer. Returns false if its metadata exceed the client's limit, so that nothing is sent.
    #[cold]
    fn begin_answer(&mut self) -> bool {
        self.is_new = false;
        let begun = self.streams.begin();
        begun.map_err(|status| self.end_with(Pumped::Failed(Reply::Status(status)))).is_ok()
    }

    fn make(&mut self, sender: &Sender, count: u64, head: ItemHead, payload: Payload) {
        match message(sender, self.streams.call(), head, payload) {
            Ok(message) => self.ahead = Some((count, message)),
            Err(status) => self.end_with(Pumped::Failed(Reply::Status(status))),
        }
    }

    fn send(&mut self, sender: &Sender, count: u64, message: Message) {
        let holds_back = message.holds_back();
        self.is_read = !message.bulk.is_empty();
        let all = self.next.is_none();
        self.streams.send(count, message, all, |message| sender.enqueue(message));
        if holds_back {
            // Nothing may follow until this has been sent.
            sender.flush();
        } else {
            sender.flush_soon();
        }
    }

    /// Ends the stream without sending what is left.
    fn end_with(&mut self, end: Pumped) {
        (self.source, self.next, self.ahead, self.end) = (None, None, None, Some(end));
    }
}

/// Returns the end of a stream whose source has panicked.
#[cold]
fn stopped_by(panic: &(dyn Any + Send), role: Role) -> Reply {
    match role {
        Role::Server => panicked(panic),
        Role::Client => {
            let status = Status::new(Code::Internal, "the caller's own stream of arguments panicked");
            Reply::Status(status.with_executed(Executed::Maybe).with_blame(Blame::Caller))
        }
    }
}

/// Returns an ITEM, unless it is too long for the peer.
fn message(sender: &Sender, call: u64, head: ItemHead, payload: Payload) -> Result<Message, Status> {
    let content = Content::item(payload);
    // On a server, the handler has run to this point. On a client, the handler is told to stop.
    let executed = match sender.terms().role {
        Role::Client => Executed::Maybe,
        Role::Server => Executed::Yes,
    };
    let unsent = |message: String| {
        Status::new(Code::Internal, message).with_executed(executed).with_blame(Blame::Application)
    };
    let head = Head::item(head, &content).map_err(|why: TooLong| unsent(format!("an item: {why}")))?;
    let mut message = Message::with_payload(FrameType::ITEM, call, head, content.payload);
    let most = sender.terms().max_message();
    if message.len() as u64 > most {
        let whose = sender.terms().whose_limits();
        return Err(too_large("an item of a stream", message.len(), most, whose).with_executed(executed));
    }
    message.keep_place();
    if message.holds_back() {
        sender.stage(&mut message);
    }
    Ok(message)
}

/// Returns an END.
pub(crate) fn end(call: u64, head: EndHead, content: Content) -> Result<Message, TooLong> {
    let head = Head::end(head, &content)?;
    Ok(Message::with_payload(FrameType::END, call, head, content.payload))
}

/// Server: returns the RESPONSE that begins a stream. Fails if its metadata exceed the client's limit.
pub(super) fn begin_answer(terms: &Terms, call: u64) -> Result<Message, Status> {
    let metadata = Context::take_initial().map_or(Ok(Bytes::new()), |initial| {
        terms.block_of_answer(&AnswerMetadata { initial, ..AnswerMetadata::default() })
    })?;
    let content = Content { metadata, payload: Payload::default() };
    let fits = "there are no attachments, and the metadata are less than the peer takes";
    let head = Head::response(&ResponseHead { kind: ResponseKind::Ok }, &content).expect(fits);
    let most = terms.max_message();
    if head.len() as u64 > most {
        let status = too_large("the metadata of the answer", head.len(), most, "the client's");
        return Err(status.with_executed(Executed::Yes).with_blame(Blame::Peer));
    }
    Ok(Message::begin_stream(call, head))
}

/// An application's stream with a function that encodes its items one by one.
#[derive(Debug)]
pub(crate) struct Encoded<'a, S, F> {
    pub(crate) stream: Pin<&'a mut S>,
    pub(crate) encode: F,
}

impl<S, F> Source for Encoded<'_, S, F>
where
    S: Stream + Send,
    F: FnMut(&S::Item, &mut Encoder) -> Result<(), Reply> + Send,
{
    fn poll_next(&mut self, cx: &mut TaskContext<'_>, out: &mut Encoder) -> Poll<Option<Result<(), Reply>>> {
        let item = ready!(self.stream.as_mut().poll_next(cx));
        // Encoded in place, because moving a fresh item may take longer than making it.
        Poll::Ready(item.as_ref().map(|item| (self.encode)(item, out)))
    }
}
