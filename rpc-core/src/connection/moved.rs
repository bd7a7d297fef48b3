//! The progress of one call.

use std::fmt;

use super::Connection;
use crate::access::Used;
use crate::call_streams::{CallStreams, StreamsMoved};
use crate::proto::inbox::Partly;

/// The parts of a call that have moved so far. If two looks at a call differ, something has moved between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The message that is arriving.
    incoming: Option<Partly>,
    /// How much a link has read of it.
    pulled: usize,
    /// How much has left of the message that is being sent, and its length, in bytes.
    outgoing: Option<(u64, u64)>,
    pub(super) streams: StreamsMoved,
}

impl Moved {
    /// Whether anything has moved since an earlier look, or may have, unseen by this side.
    pub(crate) fn is_progress_after(&self, before: &Self) -> bool {
        self != before || self.streams.lent == Some(Used::Unseen)
    }
}

impl Connection {
    /// Returns what has moved of a call. It takes the locks of receiving and sending, so the caller holds none.
    pub(crate) fn moved(&self, call: u64, streams: Option<&CallStreams>) -> Moved {
        let incoming = self.receiving.lock().inbox.partly(call);
        let read = incoming.and_then(|partly| partly.pulled).zip(self.sender.upgraded());
        Moved {
            incoming,
            pulled: read.map_or(0, |(seq, link)| link.pulled_so_far(seq)),
            outgoing: self.sender.inspect(|sending| sending.outbox.partly(call)),
            streams: streams.map(CallStreams::moved).unwrap_or_default(),
        }
    }
}

/// Displays how far the call has come.
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some((sent, total)) = self.outgoing {
            parts.push(format!("{sent} of {total} bytes of a message were sent"));
        }
        if let Some(Partly { have, total, pulled }) = self.incoming {
            parts.push(match pulled {
                None => format!("{have} of {total} bytes of a message have come"),
                Some(_) => format!("a message of {total} bytes is being read"),
            });
        }
        if let Some([sent, granted]) = self.streams.out {
            let is_full = sent.items >= granted.items || sent.bytes >= granted.bytes;
            let and = if is_full { ", and its reader has no room for more" } else { "" };
            parts.push(format!("{} items of a stream were sent{and}", sent.items));
        }
        if let Some([received, _]) = self.streams.incoming {
            parts.push(format!("{} items of a stream have come", received.items));
        }
        if parts.is_empty() {
            return f.write_str("no part of an answer has come");
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_to_lent_memory_are_progress_and_so_is_what_cannot_be_seen() {
        let lends = |used| Moved {
            streams: StreamsMoved { lent: Some(used), ..StreamsMoved::default() },
            ..Moved::default()
        };
        let [one, two] = [1, 2].map(|accesses| lends(Used::Accesses(accesses)));
        assert!(two.is_progress_after(&one) && !one.is_progress_after(&one));
        assert!(lends(Used::Unseen).is_progress_after(&lends(Used::Unseen)));
    }
}
