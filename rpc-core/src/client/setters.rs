//! Setters for the options of a call before it begins, for both kinds of calls.

use std::time::Duration;

use tokio::time::Instant;

use super::in_flight::{InFlightCall, State};
use crate::call_streams::Source;
use crate::calls::CallOptions;
use crate::class::TrafficClass;
use crate::compress::Compression;
use crate::context::{Context, Parent};
use crate::interface::stable_hash;
use crate::metadata::{Metadata, MetadataError};
use crate::service::Kind;
use crate::status::{Blame, Code, Executed, Status};

impl InFlightCall {
    /// Sets the kind of the method, and the stream that it takes, if any.
    pub(super) fn set_kind(&mut self, kind: Kind, items: Option<Box<dyn Source>>) {
        let options = CallOptions::of(&mut self.options);
        (options.kind, options.items) = (kind, items);
    }

    #[inline]
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        CallOptions::of(&mut self.options).deadline = Some(deadline);
    }

    pub(super) fn set_progress_timeout(&mut self, timeout: Duration) {
        CallOptions::of(&mut self.options).progress = Some(timeout);
    }

    pub(super) fn set_class(&mut self, class: TrafficClass) {
        self.stub = self.stub.class(class);
    }

    pub(super) fn inherit(&mut self, context: &Context) {
        self.inherit_from(context.deadline(), context.parent());
    }

    pub(super) fn detach(&mut self) {
        self.inherit_from(None, None);
    }

    fn inherit_from(&mut self, deadline: Option<Instant>, parent: Option<Parent>) {
        (self.deadline, self.inherits) = (deadline, false);
        if parent.is_some() || self.options.is_some() {
            CallOptions::of(&mut self.options).parent = parent;
        }
    }

    pub(super) fn set_wait_for_ready(&mut self, wait: bool) {
        CallOptions::of(&mut self.options).waits_for_ready = Some(wait);
    }

    pub(super) fn set_wait_for_room(&mut self, wait: bool) {
        CallOptions::of(&mut self.options).waits_for_room = Some(wait);
    }

    pub(super) fn set_compression(&mut self, by: Compression) {
        match by.check() {
            Ok(()) => CallOptions::of(&mut self.options).compression = Some(by),
            Err(status) => self.fail(|name| status.map_message(|message| format!("{name}: {message}"))),
        }
    }

    pub(super) fn set_idempotent(&mut self, idempotent: bool) {
        CallOptions::of(&mut self.options).idempotent = Some(idempotent);
    }

    pub(super) fn set_key(&mut self, key: &[u8]) {
        CallOptions::of(&mut self.options).key = Some(stable_hash(key));
    }

    /// Refuses the call with a status that `why` makes from its name, unless it is refused already.
    fn fail(&mut self, why: impl FnOnce(String) -> Status) {
        if let State::New = self.state {
            self.state = State::Refused(why(self.stub.name_of(self.method)));
        }
    }

    pub(super) fn edit_metadata(&mut self, edit: impl FnOnce(&mut Metadata) -> Result<(), MetadataError>) {
        if let Err(error) = edit(&mut CallOptions::of(&mut self.options).metadata) {
            self.fail(|name| {
                let status = Status::new(Code::InvalidArgument, format!("{name}: {error}"));
                status.with_executed(Executed::No).with_blame(Blame::Caller)
            });
        }
    }
}
