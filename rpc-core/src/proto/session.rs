//! The halves of a session acting together: where moving between links touches both.

use super::inbox::Inbox;
use super::outbox::{Outbox, Route};
use super::switch::Switch;
use super::wire::{Down, Up, WireError};

/// Both halves of a session and who has said what; borrowed, because elsewhere they are used apart.
#[derive(Debug)]
pub struct Session<'a> {
    /// Who has said what.
    pub switch: &'a mut Switch,
    /// What is taken in.
    pub inbox: &'a mut Inbox,
    /// What is sent.
    pub outbox: &'a mut Outbox,
}

/// What giving a link up asks of who runs the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallen {
    /// Say DOWN on the stream link, before any session frame, with this as its `rx_seq`.
    pub say: Option<u32>,
    /// Session frames go by the stream link from now on.
    pub resumed: bool,
}

impl Session<'_> {
    /// The new link is proven: session frames go by it from now on, once this UP is on its way by the stream link.
    /// `None` if the attempt has been given up meanwhile.
    pub fn go_up(&mut self, epoch: u32) -> Option<Up> {
        self.switch.is_usable(epoch).then(|| self.outbox.go_up(epoch))
    }

    /// The link of `epoch` failed, or the attempt is given up on this side. Nothing of it is used from now on:
    /// frames and completions that still come of it are discarded.
    pub fn fail(&mut self, epoch: u32) -> Fallen {
        let fall = self.switch.fail(epoch);
        let say = fall.say_down.then(|| self.freeze());
        // Without a DOWN of the peer there is no number that could be wrong.
        let resumed = fall.resume.is_some_and(|rx_seq| self.outbox.resume(rx_seq).is_ok());
        Fallen { say, resumed }
    }

    /// The peer said DOWN.
    pub fn on_down(&mut self, down: &Down) -> Result<Fallen, WireError> {
        let fall = self.switch.on_down(down)?;
        let say = fall.say_down.then(|| self.freeze());
        let Some(rx_seq) = fall.resume else { return Ok(Fallen { say, resumed: false }) };
        match self.outbox.resume(rx_seq) {
            Ok(()) => Ok(Fallen { say, resumed: true }),
            Err(_) => Err(WireError::new("down.rx_seq", "acknowledges what was never sent")),
        }
    }

    fn freeze(&mut self) -> u32 {
        self.inbox.freeze();
        // What never left the stream link need not wait for the peer's DOWN.
        if self.outbox.route() != Route::Stream {
            self.outbox.freeze();
        }
        self.inbox.rx_seq()
    }
}
