//! The sending side of a connection, which everyone who sends shares.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

use super::MOST_QUEUED;
use super::frames::Batch;

pub(super) struct Sender {
    socket: OwnedWriteHalf,
    queue: Mutex<Queue>,
    flush: Notify,
    /// Less is queued than there was.
    space: Notify,
}

#[derive(Default)]
struct Queue {
    batch: Batch,
    /// Somebody writes, or will: who queues something has nothing more to do.
    is_writing: bool,
    /// Memory for the next batch while one is written.
    spare: Batch,
}

impl Sender {
    /// Starts the task that writes what callers leave to it.
    pub(super) fn start(socket: OwnedWriteHalf) -> Arc<Self> {
        let sender =
            Arc::new(Self { socket, queue: Mutex::default(), flush: Notify::new(), space: Notify::new() });
        let flusher = Arc::downgrade(&sender);
        tokio::spawn(async move {
            while let Some(sender) = flusher.upgrade() {
                sender.flush.notified().await;
                // Whoever can run queues what he has, and it goes in the same write.
                tokio::task::yield_now().await;
                if sender.write_all().await.is_err() {
                    return;
                }
            }
        });
        sender
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame for the next write of the flushing task.
    pub(super) fn later(&self, number: u64, payload: &Bytes) {
        let mut queue = self.queue();
        queue.batch.push(number, payload);
        let is_writing = std::mem::replace(&mut queue.is_writing, true);
        drop(queue);
        if !is_writing {
            self.flush.notify_one();
        }
    }

    /// Queues frames as long as little is queued, and waits where much is.
    pub(super) async fn stream(&self, number: u64, payload: &Bytes, count: u64) {
        let mut left = count;
        while left > 0 {
            // Is told of what happens from now on.
            let mut space = pin!(self.space.notified());
            space.as_mut().enable();
            left = self.fill(number, payload, left);
            if left > 0 {
                space.await;
            }
        }
    }

    /// Queues as many of these as there is room for. How many are left.
    fn fill(&self, number: u64, payload: &Bytes, mut left: u64) -> u64 {
        let mut queue = self.queue();
        while left > 0 && queue.batch.len() < MOST_QUEUED {
            queue.batch.push(number, payload);
            left -= 1;
        }
        if !queue.batch.is_empty() && !std::mem::replace(&mut queue.is_writing, true) {
            self.flush.notify_one();
        }
        left
    }

    /// Writes frames at once, as far as the socket takes them and nobody else is writing.
    pub(super) fn now<'a>(&self, frames: impl Iterator<Item = (u64, &'a Bytes)>) -> io::Result<()> {
        let mut queue = self.queue();
        for (number, payload) in frames {
            queue.batch.push(number, payload);
        }
        if std::mem::replace(&mut queue.is_writing, true) {
            return Ok(());
        }
        drop(queue);
        while let Some(mut batch) = self.take() {
            if !batch.write(&self.socket)? {
                let mut queue = self.queue();
                let later = std::mem::replace(&mut queue.batch, batch);
                queue.batch.append(later);
                drop(queue);
                self.flush.notify_one();
                break;
            }
            self.queue().spare = batch;
        }
        Ok(())
    }

    /// Takes the queue; `None` ends the writing.
    fn take(&self) -> Option<Batch> {
        let mut queue = self.queue();
        if queue.batch.is_empty() {
            queue.is_writing = false;
            return None;
        }
        let spare = std::mem::take(&mut queue.spare);
        self.space.notify_waiters();
        Some(std::mem::replace(&mut queue.batch, spare))
    }

    async fn write_all(&self) -> io::Result<()> {
        while let Some(mut batch) = self.take() {
            while !batch.write(&self.socket)? {
                self.socket.writable().await?;
            }
            self.queue().spare = batch;
        }
        Ok(())
    }
}
