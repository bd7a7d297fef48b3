//! The trace that a call is part of, as the W3C writes it (Trace Context, level 2, sections 3.2 and 3.3).

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use tracing::Span;
use tracing::field::display;

use super::Propagator;
use crate::Context;
use crate::middleware::Request;

/// The name of a call within a trace. [`current`](Self::current) is that of the call that is being handled, for logs of the
/// application's own and for what else it calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContext {
    /// The trace; not 0.
    pub trace_id: u128,
    /// The call; not 0.
    pub span_id: u64,
    /// The flags of the trace: bit 0 says that whoever began it may have recorded it.
    pub flags: u8,
    /// Entries that systems along the way have added, as they wrote them.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// Returns the context of the call whose handler is being polled, if [`server`](super::server) made a span of it.
    pub fn current() -> Option<Self> {
        Context::current()?.extension::<Self>().cloned()
    }

    /// A trace that begins here.
    fn begun() -> Self {
        let trace_id = u128::from(random()) << 64 | u128::from(random());
        Self { trace_id, span_id: random(), flags: 1, state: None }
    }

    /// A call within this one.
    fn child(&self) -> Self {
        Self { span_id: random(), ..self.clone() }
    }

    fn record(&self, span: &Span) {
        span.record("trace_id", display(format_args!("{:032x}", self.trace_id)));
        span.record("span_id", display(format_args!("{:016x}", self.span_id)));
    }
}

/// `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Why something is no `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoTraceParent;

impl fmt::Display for NoTraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no traceparent, which looks like 00-(32 digits)-(16 digits)-(2 digits), all hexadecimal")
    }
}

impl std::error::Error for NoTraceParent {}

/// Reads a `traceparent`; of a later version, what this one knows of it.
impl FromStr for TraceContext {
    type Err = NoTraceParent;

    fn from_str(text: &str) -> Result<Self, NoTraceParent> {
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits).ok_or(NoTraceParent)?;
            let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            if !part.bytes().all(is_hex) {
                return Err(NoTraceParent);
            }
            u128::from_str_radix(part, 16).map_err(|_| NoTraceParent)
        };
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let has_more = parts.next().is_some();
        if version == 0xff || (version == 0 && has_more) || trace_id == 0 || span_id == 0 {
            return Err(NoTraceParent);
        }
        Ok(Self { trace_id, span_id: span_id as u64, flags: flags as u8, state: None })
    }
}

/// Not 0, and not to be guessed; from the standard library, which has no other source.
fn random() -> u64 {
    // Each has keys of its own.
    RandomState::new().hash_one(0).max(1)
}

/// Passes traces on by itself: a call that a handler makes is in the trace of its own, and one that is made elsewhere
/// begins a trace. A malformed context is ignored.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct W3c;

impl Propagator for W3c {
    fn inject(&self, span: &Span, request: &mut Request) {
        let context = TraceContext::current().map_or_else(TraceContext::begun, |parent| parent.child());
        context.record(span);
        let metadata = request.metadata_mut();
        metadata.remove("tracestate");
        // A name and digits are what metadata may be; a state that came in them is, too.
        let _ = metadata.insert("traceparent", context.to_string());
        if let Some(state) = &context.state {
            let _ = metadata.insert("tracestate", state);
        }
    }

    fn extract(&self, span: &Span, request: &mut Request) {
        let metadata = request.metadata();
        let parent = metadata.get("traceparent").and_then(|text| text.parse::<TraceContext>().ok());
        let state = metadata.get("tracestate").map(Arc::from);
        let context = match parent {
            Some(parent) => TraceContext { state, ..parent.child() },
            None => TraceContext::begun(),
        };
        context.record(span);
        request.extensions_mut().insert(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(
            (context.trace_id, context.span_id),
            (0x0af7651916cd43dd8448eb211c80319c, 0xb7ad6b7169203331)
        );
        assert_eq!((context.flags, context.to_string().as_str()), (1, text));
        // A later version with more fields.
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert_eq!(later.parse(), Ok(context));
    }

    #[test]
    fn a_header_that_is_none_is_refused() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(NoTraceParent), "{text}");
        }
    }

    #[test]
    fn numbers_are_not_the_same_twice() {
        assert_ne!(TraceContext::begun().trace_id, TraceContext::begun().trace_id);
        let begun = TraceContext::begun();
        let child = begun.child();
        assert!(child.trace_id == begun.trace_id && child.span_id != begun.span_id);
    }
}
