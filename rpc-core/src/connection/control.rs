//! Link frames on the stream link.

use bytes::{Bytes, BytesMut};

use super::{Connection, Role};
use crate::proto::message::Frame;
use crate::proto::outbox::Route;
use crate::proto::wire::{
    Answer, Close, CloseCode, Down, FrameType, Header, Hello, Offer, Ping, Up, WireError,
};
use crate::status::{Blame, Executed};

impl Connection {
    pub(super) fn on_link_frame(
        &self,
        route: Route,
        header: &Header,
        payload: Bytes,
    ) -> Result<(), WireError> {
        let kind = header.kind;
        if (self.sender.terms().peer().is_none()) != (kind == FrameType::HELLO) && kind != FrameType::CLOSE {
            return Err(WireError::new("hello", "is not the first frame, or comes again"));
        }
        if route != Route::Stream {
            // An upgraded link handles its own frames. One that arrives here is from a later version.
            return if kind.is_ignorable() {
                Ok(())
            } else {
                Err(WireError::new("header.type", "does not belong on this link"))
            };
        }
        self.note_acknowledged(header.rx_seq)?;
        self.receiving.lock().inbox.pass_by(payload.len());
        match kind {
            FrameType::HELLO => self.on_hello(Hello::decode(payload)?),
            FrameType::PING => {
                self.answer_ping(Ping::decode(payload)?);
                Ok(())
            }
            FrameType::PONG => {
                let pong = Ping::decode(payload)?;
                self.receiving.lock().pings.answered(&pong);
                Ok(())
            }
            FrameType::ACK => Ok(()),
            FrameType::OFFER if self.role() == Role::Client => {
                Err(WireError::new("offer", "comes from a server"))
            }
            FrameType::ANSWER if self.role() == Role::Server => {
                Err(WireError::new("answer", "comes from a client"))
            }
            FrameType::OFFER => self.on_offer(Offer::decode(payload)?),
            FrameType::ANSWER => self.on_answer(Answer::decode(payload)?),
            FrameType::UP => self.on_up(Up::decode(payload)?),
            FrameType::DOWN => self.on_down(&Down::decode(payload)?),
            FrameType::CLOSE => {
                self.on_close(Close::decode(payload).ok());
                Ok(())
            }
            kind if kind.is_ignorable() => Ok(()),
            _ => Err(WireError::new("header.type", "is not one that was agreed on")),
        }
    }

    /// Answers only the last of the PINGs whose answers are unsent, because a peer may ask without reading.
    fn answer_ping(&self, ping: Ping) {
        let mut payload = BytesMut::new();
        ping.encode(&mut payload);
        let pong = Frame::link(FrameType::PONG, payload.freeze());
        self.sender.change(|sending| {
            match sending.control.iter_mut().find(|frame| frame.header.kind == FrameType::PONG) {
                Some(waiting) => *waiting = pong,
                None => sending.control.push_back(pong),
            }
        });
    }

    /// Handles the peer's end of the session. `None` if its reason can't be read.
    fn on_close(&self, close: Option<Close>) {
        let close_code = close.as_ref().map(|close| close.code);
        let blame = match close_code {
            Some(CloseCode::Protocol) => Blame::Bug,
            Some(CloseCode::Internal) | None => Blame::Peer,
            Some(_) => Blame::Environment,
        };
        let reason = close.map_or_else(|| "for a reason that can't be read".into(), |close| close.reason);
        // A peer that closes with one of these has served nothing.
        let executed = match close_code {
            Some(CloseCode::Required | CloseCode::Version | CloseCode::Overloaded) => Executed::No,
            _ => Executed::Maybe,
        };
        self.end(self.status(format!("closed by the peer, which says: {reason}"), executed, blame));
        self.sender.stream().close();
    }
}
