//! The service: one method, with a stream each way.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall::{Code, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// How many events a member may be behind.
const BEHIND: usize = 1024;

#[farcall::service(package = "chat.v1")]
pub trait Chat {
    /// Joins a room: gives what happens there, and says there what `lines` gives. Its end leaves the room.
    async fn join(
        &self,
        room: String,
        name: String,
        lines: Streaming<String>,
    ) -> Result<impl Stream<Item = farcall::Result<Event>>, JoinError>;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    Joined { name: String },
    Said { name: String, text: String },
    Left { name: String },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum JoinError {
    NameTaken,
    Call(Status),
}

impl From<Status> for JoinError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

#[derive(Clone, Default)]
pub struct Rooms(Arc<Mutex<HashMap<String, Room>>>);

struct Room {
    names: HashSet<String>,
    events: broadcast::Sender<Event>,
}

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, room: String, name: String) -> Result<(Member, broadcast::Receiver<Event>), JoinError> {
        let mut rooms = self.lock();
        let new = || Room { names: HashSet::new(), events: broadcast::Sender::new(BEHIND) };
        let Room { names, events } = rooms.entry(room.clone()).or_insert_with(new);
        if !names.insert(name.clone()) {
            return Err(JoinError::NameTaken);
        }
        let member = Member { rooms: self.clone(), room, name: name.clone(), events: events.clone() };
        let heard = events.subscribe();
        member.tell(Event::Joined { name });
        Ok((member, heard))
    }
}

/// Somebody in a room; dropped, the name is free again.
struct Member {
    rooms: Rooms,
    room: String,
    name: String,
    events: broadcast::Sender<Event>,
}

impl Member {
    fn tell(&self, event: Event) {
        // Nobody hears a guest leave an empty room.
        let _ = self.events.send(event);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut rooms = self.rooms.lock();
        if let Some(room) = rooms.get_mut(&self.room) {
            room.names.remove(&self.name);
            if room.names.is_empty() {
                rooms.remove(&self.room);
            }
        }
        self.tell(Event::Left { name: self.name.clone() });
    }
}

impl Chat for Rooms {
    async fn join(
        &self,
        room: String,
        name: String,
        lines: Streaming<String>,
    ) -> Result<impl Stream<Item = farcall::Result<Event>>, JoinError> {
        let (member, heard) = self.enter(room, name)?;
        let (sender, events) = stream::channel(16);
        tokio::spawn(talk(member, lines, heard, sender));
        Ok(events)
    }
}

/// Until the member leaves, is gone, or has fallen too far behind.
async fn talk(
    member: Member,
    mut lines: Streaming<String>,
    mut heard: broadcast::Receiver<Event>,
    sender: stream::Sender<Event>,
) {
    loop {
        tokio::select! {
            line = lines.message() => match line {
                Ok(Some(text)) => member.tell(Event::Said { name: member.name.clone(), text }),
                Ok(None) | Err(_) => return,
            },
            event = heard.recv() => {
                let event = event.map_err(|_| Status::new(Code::ResourceExhausted, "too far behind"));
                let is_last = event.is_err();
                if sender.pass_on(event).await.is_err() || is_last {
                    return;
                }
            }
        }
    }
}
