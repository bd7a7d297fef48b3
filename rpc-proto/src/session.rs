//! The halves of a session acting together: where moving between links touches both.

use super::inbox::Inbox;
use super::outbox::{Outbox, Route};
use super::upgrade_state::UpgradeState;
use super::wire::{Down, Pull, Up, WireError};

/// Both halves of a session and who has said what; borrowed, because elsewhere they are used apart.
#[derive(Debug)]
pub struct Session<'a> {
    /// The record of which side has said UP and DOWN.
    pub upgrade_state: &'a mut UpgradeState,
    /// The receiving half.
    pub inbox: &'a mut Inbox,
    /// The sending half.
    pub outbox: &'a mut Outbox,
}

/// The work that giving a link up leaves to the runner of the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallen {
    /// Say DOWN on the stream link, before any session frame, with this.
    pub say: Option<Say>,
    /// Session frames go by the stream link from now on.
    pub resumed: bool,
}

/// The fields of a DOWN that the session determines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    /// The last session frame that was taken in.
    pub rx_seq: u32,
    /// The described messages that have to be sent.
    pub pulls: Vec<Pull>,
}

impl Session<'_> {
    /// The new link is proven: session frames go by it from now on, once this UP is on its way by the stream link.
    /// `None` if the attempt has been given up meanwhile.
    pub fn go_up(&mut self, epoch: u32) -> Option<Up> {
        self.upgrade_state.is_usable(epoch).then(|| self.outbox.go_up(epoch))
    }

    /// The link of `epoch` failed, or the attempt is given up on this side. Nothing of it is used from now on:
    /// frames and completions that still come of it are discarded.
    pub fn fail(&mut self, epoch: u32) -> Fallen {
        let say = self.upgrade_state.fail(epoch).then(|| self.freeze());
        // The peer's DOWN is to come: had it come before, this side would have answered it.
        Fallen { say, resumed: false }
    }

    /// The peer said DOWN.
    pub fn on_down(&mut self, down: &Down) -> Result<Fallen, WireError> {
        let fall = self.upgrade_state.on_down(down)?;
        let say = fall.say_down.then(|| self.freeze());
        if fall.resume {
            let resumed = self.outbox.resume(down.rx_seq, &down.pulls);
            resumed
                .map_err(|_| WireError::new("down", "acknowledges what was never sent, or asks for it"))?;
        }
        Ok(Fallen { say, resumed: fall.resume })
    }

    fn freeze(&mut self) -> Say {
        let pulls = self.inbox.freeze();
        // A session that never left the stream link need not wait for the peer's DOWN.
        if self.outbox.route() != Route::Stream {
            self.outbox.freeze();
        }
        Say { rx_seq: self.inbox.rx_seq(), pulls }
    }
}
