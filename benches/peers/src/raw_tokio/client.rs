//! The client: a call that is alone is written by its caller, others together by a task.

use std::future::poll_fn;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::net::TcpStream;

use super::frames::Reader;
use super::sender::Sender;
use crate::Result;
use crate::load::Caller;

#[derive(Clone)]
pub(crate) struct Client {
    connection: Arc<Connection>,
}

struct Connection {
    sender: Arc<Sender>,
    calls: Mutex<Calls>,
}

/// Calls in flight; their numbers are places in `slots`.
#[derive(Default)]
struct Calls {
    slots: Vec<Slot>,
    free: Vec<usize>,
    is_over: bool,
}

enum Slot {
    Waiting(Option<Waker>),
    Answered(Bytes),
}

impl Client {
    pub(super) fn new(socket: TcpStream) -> Self {
        let (reading, writing) = socket.into_split();
        let connection = Arc::new(Connection { sender: Sender::start(writing), calls: Mutex::default() });
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
        let (number, is_alone) = self.connection.calls().begin();
        let sender = &self.connection.sender;
        if is_alone {
            sender.now(iter::once((number as u64, payload)))?;
        } else {
            sender.later(number as u64, payload);
        }
        let answer = poll_fn(|cx| self.connection.calls().poll(number, cx)).await?;
        Ok(answer.len())
    }
}

impl Calls {
    /// The call's number, and whether it is the only one.
    fn begin(&mut self) -> (usize, bool) {
        let number = self.free.pop().unwrap_or(self.slots.len());
        let waiting = Slot::Waiting(None);
        match self.slots.get_mut(number) {
            Some(slot) => *slot = waiting,
            None => self.slots.push(waiting),
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
        }
    }

    /// Who is to be woken.
    fn answer(&mut self, number: u64, payload: Bytes) -> Result<Option<Waker>> {
        let slot = self.slots.get_mut(number as usize).ok_or("an answer to no call")?;
        match std::mem::replace(slot, Slot::Answered(payload)) {
            Slot::Waiting(waker) => Ok(waker),
            Slot::Answered(_) => Err("a second answer to a call".into()),
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
            let mut calls = self.calls();
            while let Some((number, payload)) = reader.next() {
                wakers.extend(calls.answer(number, payload)?);
            }
            drop(calls);
            wakers.drain(..).for_each(Waker::wake);
        }
        Ok(())
    }

    fn end(&self) {
        let mut calls = self.calls();
        calls.is_over = true;
        for slot in &mut calls.slots {
            if let Slot::Waiting(Some(waker)) = slot {
                waker.wake_by_ref();
            }
        }
    }
}
