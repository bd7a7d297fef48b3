//! Answers, from the handler to the queue.

use bytes::Bytes;

use super::Dispatch;
use super::handler::late;
use super::jobs::ENOUGH;
use super::outgoing::OutgoingAnswer;
use crate::buffer_pool;
use crate::call_streams::{self, Ended};
use crate::payload::Payload;
use crate::proto::message::{Head, Message};
use crate::proto::small_frames::SmallFrames;
use crate::proto::text::cut;
use crate::proto::wire::{
    Content, EndHead, EndReason, FrameType, PLAIN_RESPONSE, ResponseHead, ResponseKind, TooLong,
    encode_status,
};
use crate::refusal::too_large;
use crate::reply::Reply;
use crate::status::{Blame, Code, Executed, Status};

/// An answer that is longer does not wait for others to be sent with. Bytes.
const LONG_ANSWER: usize = 128 << 10;

impl Dispatch {
    /// Queues the answer of a handler that is done. The answer to a cancelled call is dropped.
    pub(crate) fn complete(&self, call: u64, reply: Reply) {
        if !self.streams.is_empty() {
            return self.complete_streaming(call, reply);
        }
        self.complete_plain(call, reply);
    }

    /// Completes a call while some calls have streams, perhaps this one.
    #[cold]
    fn complete_streaming(&self, call: u64, reply: Reply) {
        let Some(streams) = self.streams.get(call).filter(|streams| streams.has_begun()) else {
            self.streams.end(call, Ended::gave_up);
            return self.complete_plain(call, reply);
        };
        // The END must come after the last items, of which a part may have been sent.
        let Err(reply) = streams.keep_reply(reply) else { return };
        if let Some(items) = streams.end_sending() {
            let end = self.end_of_answer(call, items, reply);
            self.running.end_with(call, || self.sender.enqueue(end));
        }
        self.streams.end(call, Ended::gave_up);
        self.sender.progress().note();
    }

    fn complete_plain(&self, call: u64, reply: Reply) {
        match self.short_result(&reply) {
            Some((head, body)) => {
                self.running
                    .end_with(call, || self.sender.enqueue_small(FrameType::RESPONSE, call, &head, body));
                recycle(reply);
            }
            None => {
                let reply = self.reply(call, reply);
                let is_long = reply.len() > LONG_ANSWER;
                self.running.end_with(call, || self.sender.enqueue(reply));
                if is_long {
                    // So that its memory counts before the next one is made.
                    self.sender.flush();
                }
            }
        }
        self.sender.progress().note();
    }

    /// Completes several calls with short answers.
    pub(super) fn complete_all(&self, results: &mut SmallFrames) {
        let mut ended = Vec::new();
        if !self.streams.is_empty() {
            results.take_out(|answer| {
                ended.push(answer.call);
                false
            });
        }
        let mut running = self.running.lock();
        results.take_out(|answer| !running.end(answer.call));
        let queued = self.sender.enqueue_all(results);
        drop(running);
        ended.into_iter().for_each(|call| self.streams.end(call, Ended::gave_up));
        self.sender.progress().note();
        if queued >= ENOUGH {
            self.sender.flush();
        }
    }

    /// Returns a short result with its head, unless it is too long for the peer or compressed.
    #[inline]
    pub(super) fn short_result<'r>(&self, reply: &'r Reply) -> Option<([u8; PLAIN_RESPONSE], &'r [u8])> {
        let Reply::Ok(payload) = reply else { return None };
        let len = payload.short_len()?;
        let terms = self.sender.terms();
        let fits = PLAIN_RESPONSE as u64 + u64::from(len) <= terms.max_message();
        (fits && !terms.compresses_by_default(len))
            .then(|| (ResponseHead { kind: ResponseKind::Ok }.encode_plain(len), payload.body()))
    }

    fn reply(&self, call: u64, reply: Reply) -> Message {
        let max = self.sender.terms().max_message();
        let OutgoingAnswer { reply, metadata, compression } = OutgoingAnswer::new(self.sender.terms(), reply);
        let (kind, payload) = match reply {
            Reply::Ok(payload) => (ResponseKind::Ok, payload),
            Reply::Err(payload) => (ResponseKind::Err, payload),
            Reply::Status(status) | Reply::Refused(status) => {
                return status_reply(call, status, metadata, max);
            }
            Reply::End(sent) if sent.reason() == EndReason::Deadline => {
                return status_reply(call, late(), metadata, max);
            }
            // A stream that had not begun.
            Reply::End(_) | Reply::With(_) => (ResponseKind::Ok, Payload::default()),
        };
        let payload = self.sender.terms().compress(compression, payload);
        match response(call, kind, metadata, payload) {
            Ok(mut message) if message.len() as u64 <= max => {
                self.sender.stage(&mut message);
                message
            }
            Ok(message) => {
                let status = too_large("the result", message.len(), max, "the client's");
                let status = status.with_executed(Executed::Yes).with_blame(Blame::Peer);
                status_reply(call, status, Bytes::new(), max)
            }
            Err(why) => {
                let status = Status::new(Code::Internal, format!("the result: {why}"));
                status_reply(call, status, Bytes::new(), max)
            }
        }
    }
}

/// Keeps the memory of an answer that was copied into its frame.
#[inline]
pub(super) fn recycle(reply: Reply) {
    // By value, because taking the reply's address would force it through memory where it is made.
    if let Reply::Ok(payload) = reply {
        buffer_pool::recycle(payload.into_buffer());
    }
}

impl Dispatch {
    /// Returns the END of an answer that is a stream of `items` items.
    fn end_of_answer(&self, call: u64, items: u64, reply: Reply) -> Message {
        let max = self.sender.terms().max_message();
        let OutgoingAnswer { reply, metadata, .. } = OutgoingAnswer::new(self.sender.terms(), reply);
        let (reason, payload) = match reply {
            Reply::End(sent) => (sent.reason(), Payload::default()),
            Reply::Ok(_) | Reply::With(_) => (EndReason::Completed, Payload::default()),
            Reply::Err(payload) => (EndReason::Error, payload),
            Reply::Status(status) | Reply::Refused(status) => {
                (EndReason::Status, Payload::from_body(encode_status(&status)))
            }
        };
        let status = match call_streams::end(call, EndHead { reason, items }, Content { metadata, payload }) {
            Ok(whole) if whole.len() as u64 <= max => return whole,
            Ok(whole) => too_large("the error of a stream", whole.len(), max, "the client's"),
            Err(why) => Status::new(Code::Internal, format!("the error of a stream: {why}")),
        };
        let payload = Payload::from_body(encode_status(&status.with_executed(Executed::Yes)));
        let head = EndHead { reason: EndReason::Status, items };
        let end = call_streams::end(call, head, Content { metadata: Bytes::new(), payload });
        end.expect("a status has no attachments, and this one is of a few words")
    }
}

fn response(call: u64, kind: ResponseKind, metadata: Bytes, payload: Payload) -> Result<Message, TooLong> {
    let content = Content { metadata, payload };
    let head = Head::response(&ResponseHead { kind }, &content)?;
    Ok(Message::with_payload(FrameType::RESPONSE, call, head, content.payload))
}

/// How many bytes of a status message fit into an answer to any peer.
const ANY_PEER: usize = 800;

/// Returns a status as an answer. If it is too long for the peer, it loses its details and metadata, and its message is
/// cut.
fn status_reply(call: u64, status: Status, metadata: Bytes, max: u64) -> Message {
    let whole = response(call, ResponseKind::Status, metadata, Payload::from_body(encode_status(&status)));
    match whole {
        Ok(message) if message.len() as u64 <= max => message,
        _ => {
            let message = cut(status.message(), ANY_PEER);
            let short = Status::new(status.code(), message)
                .with_blame(status.blame())
                .with_executed(status.executed());
            let body = Payload::from_body(encode_status(&short));
            let fits = "no peer's limit is below 1 KiB";
            response(call, ResponseKind::Status, Bytes::new(), body).expect(fits)
        }
    }
}
