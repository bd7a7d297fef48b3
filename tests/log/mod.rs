//! A log that tests can read: every span and event, at every level, with all its fields.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The lines, one for each event, span, or later field of a span.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Notes what happens on this thread, until what is returned is dropped.
    pub(crate) fn listen(&self) -> (DefaultGuard, Dispatch) {
        // Where there is one dispatcher, tracing asks the thread that first comes to an event whether anybody wants it, perhaps the thread of
        // another test, and remembers the answer. Where there are two, it asks both.
        let second = Dispatch::new(NoSubscriber::new());
        (tracing::subscriber::set_default(tracing_subscriber::registry().with(self.clone())), second)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, of: Option<&Metadata<'_>>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(String::new());
        if let Some(of) = of {
            write!(line.0, "{} {} {}", of.level(), of.target(), of.name()).unwrap();
        }
        record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.add(Some(span.metadata()), |line| span.record(line));
    }

    fn on_record(&self, _: &Id, fields: &Record<'_>, _: Context<'_, S>) {
        self.add(None, |line| fields.record(line));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.add(Some(event.metadata()), |line| event.record(line));
    }
}
