//! The client: a call that is alone is written by its caller, others together by a task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::frames::Reader;
use super::sender::Sender;
use super::{MOST_UNREAD, STREAM};
use crate::Result;
use crate::load::Caller;

#[derive(Clone)]
pub(crate) struct Client {
    connection: Arc<Connection>,
}

struct Connection {
    sender: Arc<Sender>,
    calls: Mutex<Calls>,
    /// Less of streams is unread than there was.
    space: Notify,
}

/// Calls in flight; their numbers are places in `slots`.
#[derive(Default)]
struct Calls {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// How much of streams is unread.
    unread: usize,
    is_over: bool,
}

enum Slot {
    Waiting(Option<Waker>),
    Answered(Bytes),
    Stream(Items),
}

/// The items of a stream that have come.
#[derive(Default)]
struct Items {
    queue: VecDeque<Bytes>,
    has_ended: bool,
    waker: Option<Waker>,
}

impl Client {
    pub(super) fn new(socket: TcpStream) -> Self {
        let (reading, writing) = socket.into_split();
        let connection = Arc::new(Connection {
            sender: Sender::start(writing),
            calls: Mutex::default(),
            space: Notify::new(),
        });
        let reader = connection.clone();
        tokio::spawn(async move {
            // However it ends, those who wait are told.
            let _ = reader.receive(Reader::new(reading)).await;
            reader.end();
        });
        Self { connection }
    }
}

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        let (number, is_alone) = self.connection.calls().begin(Slot::Waiting(None));
        let sender = &self.connection.sender;
        if is_alone {
            sender.now(iter::once((number as u64, payload)))?;
        } else {
            sender.later(number as u64, payload);
        }
        let answer = poll_fn(|cx| self.connection.calls().poll(number, cx)).await?;
        Ok(answer.len())
    }

    async fn stream(&mut self, count: u64, size: usize, item: &mut (dyn FnMut(usize) + Send)) -> Result<()> {
        let (number, _) = self.connection.calls().begin(Slot::Stream(Items::default()));
        let mut asked = BytesMut::with_capacity(16);
        asked.put_u64_le(count);
        asked.put_u64_le(size as u64);
        self.connection.sender.now(iter::once((number as u64 | STREAM, &asked.freeze())))?;
        let mut items = VecDeque::new();
        loop {
            let has_ended = poll_fn(|cx| self.connection.calls().poll_stream(number, &mut items, cx)).await?;
            self.connection.space.notify_one();
            items.drain(..).for_each(|payload| item(payload.len()));
            if has_ended {
                self.connection.calls().free.push(number);
                return Ok(());
            }
        }
    }
}

impl Calls {
    /// The call's number, and whether it is the only one.
    fn begin(&mut self, begun: Slot) -> (usize, bool) {
        let number = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(slot) => *slot = begun,
            None => self.slots.push(begun),
        }
        (number, self.free.len() + 1 == self.slots.len())
    }

    fn poll(&mut self, number: usize, cx: &Context<'_>) -> Poll<Result<Bytes>> {
        match &mut self.slots[number] {
            Slot::Waiting(_) if self.is_over => Poll::Ready(Err("the connection has ended".into())),
            Slot::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Slot::Answered(payload) => {
                let payload = std::mem::take(payload);
                self.free.push(number);
                Poll::Ready(Ok(payload))
            }
            Slot::Stream(_) => Poll::Ready(Err("a stream in place of an answer".into())),
        }
    }

    /// Takes all that has come; says whether the stream has ended with it.
    fn poll_stream(
        &mut self,
        number: usize,
        items: &mut VecDeque<Bytes>,
        cx: &Context<'_>,
    ) -> Poll<Result<bool>> {
        let Slot::Stream(stream) = &mut self.slots[number] else {
            return Poll::Ready(Err("an answer in place of a stream".into()));
        };
        if stream.queue.is_empty() && !stream.has_ended {
            if self.is_over {
                return Poll::Ready(Err("the connection has ended".into()));
            }
            stream.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut stream.queue, items);
        self.unread -= items.iter().map(Bytes::len).sum::<usize>();
        Poll::Ready(Ok(stream.has_ended))
    }

    /// Stores an item. Returns the waker of its reader.
    fn take_item(&mut self, number: u64, payload: Bytes) -> Result<Option<Waker>> {
        let slot = self.slots.get_mut((number & !STREAM) as usize);
        let Some(Slot::Stream(stream)) = slot else { return Err("an item of no stream".into()) };
        if payload.is_empty() {
            stream.has_ended = true;
        } else {
            self.unread += payload.len();
            stream.queue.push_back(payload);
        }
        Ok(stream.waker.take())
    }

    /// Stores an answer. Returns the waker of its caller.
    fn answer(&mut self, number: u64, payload: Bytes) -> Result<Option<Waker>> {
        let slot = self.slots.get_mut(number as usize).ok_or("an answer to no call")?;
        match std::mem::replace(slot, Slot::Answered(payload)) {
            Slot::Waiting(waker) => Ok(waker),
            Slot::Answered(_) | Slot::Stream(_) => Err("a second answer to a call".into()),
        }
    }
}

impl Connection {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn receive(&self, mut reader: Reader) -> Result<()> {
        let mut wakers = Vec::new();
        while reader.read().await? {
            self.take(&mut reader, &mut wakers)?;
            wakers.drain(..).for_each(Waker::wake);
            while self.calls().unread > MOST_UNREAD {
                self.space.notified().await;
            }
        }
        Ok(())
    }

    fn take(&self, reader: &mut Reader, wakers: &mut Vec<Waker>) -> Result<()> {
        let mut calls = self.calls();
        while let Some((number, payload)) = reader.next() {
            wakers.extend(match number & STREAM {
                0 => calls.answer(number, payload)?,
                _ => calls.take_item(number, payload)?,
            });
        }
        Ok(())
    }

    fn end(&self) {
        let mut calls = self.calls();
        calls.is_over = true;
        for slot in &mut calls.slots {
            if let Slot::Waiting(Some(waker)) | Slot::Stream(Items { waker: Some(waker), .. }) = slot {
                waker.wake_by_ref();
            }
        }
    }
}
