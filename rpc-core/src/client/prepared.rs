//! A call that has not begun, of whatever kind.

use std::time::Duration;

use tokio::time::Instant;

use super::Stub;
use super::in_flight::InFlightCall;
use crate::call_streams::Source;
use crate::calls::CallOptions;
use crate::class::TrafficClass;
use crate::compress::Compression;
use crate::context::{Context, Parent, earlier};
use crate::metadata::{Metadata, MetadataError};
use crate::payload::Payload;
use crate::service::Kind;
use crate::status::{Blame, Code, Executed, Status};

/// What is called, with what, and how.
pub(super) struct CallBuilder {
    pub(super) stub: Stub,
    pub(super) method: usize,
    arguments: Result<Payload, Status>,
    timeout: Option<Duration>,
    inherits: Inherits,
    options: Option<Box<CallOptions>>,
}

/// Which deadline besides its own a call has, perhaps.
#[derive(Clone, Copy)]
enum Inherits {
    /// That of the handler that is being polled when the call is awaited.
    Current,
    Given(Option<Instant>),
}

impl CallBuilder {
    #[inline]
    pub(super) fn new(stub: Stub, method: usize, arguments: Result<Payload, Status>) -> Self {
        Self { stub, method, arguments, timeout: None, inherits: Inherits::Current, options: None }
    }

    /// What has come through middleware.
    pub(super) fn again(
        stub: Stub,
        method: usize,
        arguments: Payload,
        options: Box<CallOptions>,
        deadline: Option<Instant>,
    ) -> Self {
        let inherits = Inherits::Given(deadline);
        Self { stub, method, arguments: Ok(arguments), timeout: None, inherits, options: Some(options) }
    }

    /// Of a method of this kind, which may take a stream.
    pub(super) fn of_kind(mut self, kind: Kind, items: Option<Box<dyn Source>>) -> Self {
        let options = self.options();
        (options.kind, options.items) = (kind, items);
        self
    }

    fn options(&mut self) -> &mut CallOptions {
        CallOptions::of(&mut self.options)
    }

    #[inline]
    pub(super) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(super) fn deadline(mut self, deadline: Instant) -> Self {
        self.options().deadline = Some(deadline);
        self
    }

    pub(super) fn class(mut self, class: TrafficClass) -> Self {
        self.stub = self.stub.class(class);
        self
    }

    pub(super) fn context(mut self, context: &Context) -> Self {
        self.inherits = Inherits::Given(context.deadline());
        self.set_parent(context.parent());
        self
    }

    pub(super) fn detached(mut self) -> Self {
        self.inherits = Inherits::Given(None);
        self.set_parent(None);
        self
    }

    fn set_parent(&mut self, parent: Option<Parent>) {
        if parent.is_some() || self.options.is_some() {
            self.options().parent = parent;
        }
    }

    pub(super) fn wait_for_ready(mut self, wait: bool) -> Self {
        self.options().waits_for_ready = Some(wait);
        self
    }

    pub(super) fn compress(mut self, by: Compression) -> Self {
        match by.check() {
            Ok(()) => self.options().compression = Some(by),
            Err(status) => self.fail(|name| status.map_message(|message| format!("{name}: {message}"))),
        }
        self
    }

    /// It is not sent, and ends with this status, which `why` makes of its name; unless there is one already.
    fn fail(&mut self, why: impl FnOnce(String) -> Status) {
        if self.arguments.is_ok() {
            self.arguments = Err(why(self.stub.name_of(self.method)));
        }
    }

    pub(super) fn edit_metadata(
        mut self,
        edit: impl FnOnce(&mut Metadata) -> Result<(), MetadataError>,
    ) -> Self {
        if let Err(error) = edit(&mut self.options().metadata) {
            self.fail(|name| {
                let status = Status::new(Code::InvalidArgument, format!("{name}: {error}"));
                status.with_executed(Executed::No).with_blame(Blame::Caller)
            });
        }
        self
    }

    #[inline]
    pub(super) fn begin(self) -> InFlightCall {
        let (inherited, adoptable) = match self.inherits {
            Inherits::Current => (Context::current_deadline(), true),
            Inherits::Given(deadline) => (deadline, false),
        };
        let own = self.options.as_ref().and_then(|options| options.deadline);
        let inherited = earlier(inherited, own);
        let mut call =
            InFlightCall::new(self.stub, self.method, self.arguments, self.options, inherited, self.timeout);
        call.adoptable = adoptable;
        call
    }
}
