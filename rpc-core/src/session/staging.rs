//! Staging of long messages that the peer reads instead of receiving them (WIRE.md section 3.6).

use std::sync::Arc;

use bytes::Bytes;

use super::Role;
use super::sender::Sender;
use super::sending::{Sending, UpgradedLink};
use crate::payload::BY_REFERENCE;
use crate::proto::message::{Bulk, Message};
use crate::proto::wire::features;
use crate::transport::{Direction, Link};

/// The most bytes that a described message may have besides its bulk, since these are sent.
const MAX_BEGIN: usize = 4096;

impl Sender {
    /// Returns the link whose peer may read this side's memory, if there is one.
    pub(crate) fn upgraded(&self) -> Option<Arc<dyn Link>> {
        self.upgraded_in_epoch().map(|(_, link)| link)
    }

    /// Returns the upgraded link, and its epoch.
    pub(crate) fn upgraded_in_epoch(&self) -> Option<UpgradedLink> {
        self.upgraded.lock().clone()
    }

    /// Sets the link whose peer may read this side's memory. The lock of sending must be held.
    pub(crate) fn set_upgraded(&self, _: &mut Sending, link: Option<UpgradedLink>) {
        *self.upgraded.lock() = link;
    }

    /// Copies or encrypts the end of a long message to where the peer can read it, before the message is queued. The sending task
    /// does it, and holds up no other task.
    pub(crate) fn stage(&self, message: &mut Message) {
        // A message that is not staged is never described.
        let may_be_described = self.terms().peer_has(features::DESCRIBED);
        if !may_be_described || message.payload.len() <= BY_REFERENCE {
            return;
        }
        let Some(link) = self.upgraded() else { return };
        let direction = match self.terms().role {
            Role::Client => Direction::Request,
            Role::Server => Direction::Response,
        };
        let len = message.len();
        let attachments = message.payload.attachments();
        if let Some(last) = attachments.last()
            && len - last.len() <= MAX_BEGIN
        {
            message.bulk = link.stage(direction, std::slice::from_ref(last));
            if matches!(message.bulk, Bulk::Plain(_)) {
                message.payload.pop_attachment();
            }
        } else if message.head.len() <= MAX_BEGIN {
            let pieces: Vec<Bytes> = message.payload.clone().into_pieces().collect();
            message.bulk = link.stage(direction, &pieces);
            if matches!(message.bulk, Bulk::Plain(_)) {
                message.payload = Default::default();
            }
        }
    }
}
