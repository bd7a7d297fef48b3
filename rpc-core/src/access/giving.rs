//! Grants of this side: regions that the peer reads by itself, without this side's program.

use std::sync::Weak;
use std::time::Duration;

use bytes::BytesMut;
use tokio::runtime::Handle;

use super::{Accesses, exports};
use crate::payload::Payload;
use crate::proto::wire::{Granted, Operation, Outcome, Target, WireError};
use crate::transport::{Grant, Hold};

/// How long a peer may take to say that it reads no more. After that its reads fail, and its link with them.
const PATIENCE: Duration = Duration::from_secs(10);

/// A grant, as the region keeps it. Dropping it ends it, without a word to the peer.
#[derive(Debug)]
pub(crate) struct GivenGrant {
    target: Target,
    to: Weak<Accesses>,
    runtime: Handle,
    hold: Box<dyn Hold>,
}

impl GivenGrant {
    /// Whether the grant has ended, with its link.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Ends the grant in a task, when the peer reads no more by it, or has had the time for that.
    pub(crate) fn end(self) {
        self.runtime.clone().spawn(async move {
            if let Some(accesses) = self.to.upgrade().filter(|_| !self.is_over()) {
                let withdrawn = accesses.access(self.target, 0, Operation::Withdraw, 0);
                // Whatever the peer says, the grant is over.
                let _ = tokio::time::timeout(PATIENCE, withdrawn).await;
            }
            drop(self.hold);
        });
    }
}

impl Accesses {
    /// The peer asks to read a region by itself.
    pub(super) fn serve_grant(&self, number: u64, target: Target) -> Result<(), WireError> {
        let Some(this) = self.me.upgrade() else { return Ok(()) };
        self.runtime.spawn(async move {
            let granted = this.granted(target).await;
            this.answer_with(number, granted);
        });
        Ok(())
    }

    async fn granted(&self, target: Target) -> Result<Payload, Outcome> {
        let Target::Region { number, key } = target else { return Err(Outcome::Forbidden) };
        let memory = exports::find(number, key).ok_or(Outcome::Gone)?;
        let (epoch, link) = self.sender.upgraded_in_epoch().ok_or(Outcome::Forbidden)?;
        let grant = link.grant(memory.words()?).await.ok_or(Outcome::Forbidden)?;
        let Grant { descriptor, hold } = grant;
        let given = GivenGrant { target, to: self.me.clone(), runtime: self.runtime.clone(), hold };
        memory.keep(given).map_err(|_| Outcome::Gone)?;
        let mut bytes = BytesMut::new();
        Granted { epoch, descriptor }.encode(&mut bytes);
        Ok(Payload::from_body(bytes.freeze()))
    }
}
