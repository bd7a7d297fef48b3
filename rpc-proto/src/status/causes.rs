//! Causes: the sources of a status, as they travel.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Status;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::text::cut;

/// How many are sent, and kept of those that come.
const MOST: usize = 16;

/// So many bytes of each are sent.
const LONGEST: usize = 1024;

/// A cause on another machine: its text is all that is known of it.
struct Cause {
    text: String,
    source: Option<Box<Self>>,
}

impl Cause {
    /// A chain of these.
    fn chain<'a>(texts: impl DoubleEndedIterator<Item = &'a [u8]>) -> Option<Box<Self>> {
        texts.rev().fold(None, |source, text| {
            let text = String::from_utf8_lossy(text).into_owned();
            Some(Box::new(Self { text, source }))
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// It, and what it was caused by, in a row.
impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chain = std::iter::successors(Some(self), |cause| cause.source.as_deref());
        f.debug_list().entries(chain.map(|cause| &cause.text)).finish()
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl Status {
    /// Returns the chain of causes, to the end.
    pub(super) fn sources(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        std::iter::successors(self.source(), |&source| source.source())
    }

    /// Its causes as they go with an answer: the first of them that have room in so many bytes.
    pub fn causes(&self, room: usize) -> Metadata {
        let mut causes = Metadata::new();
        // `Display` and `source` are the application's code, which may panic. The causes before that one are kept.
        let written = catch_unwind(AssertUnwindSafe(|| {
            for source in self.sources().take(MOST) {
                if !causes.put_cause(&cut(&source.to_string(), LONGEST), room) {
                    break;
                }
            }
        }));
        if written.is_err() {
            causes.put_cause("(the next cause has no text: its Display panicked)", room);
        }
        causes
    }

    /// As it came with these.
    #[must_use]
    pub fn received_with(mut self, metadata: &AnswerMetadata) -> Self {
        self.0.metadata = metadata.trailing.clone();
        let causes: Vec<_> = metadata.causes.causes().take(MOST).collect();
        self.0.source =
            Cause::chain(causes.into_iter()).map(|cause| Arc::from(cause as Box<dyn Error + Send + Sync>));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;

    /// A chain of errors as long as their texts.
    fn caused_by(texts: &[&str]) -> Status {
        let chain = Cause::chain(texts.iter().map(|text| text.as_bytes()));
        Status::new(Code::Internal, "failed").with_source(chain.unwrap() as Box<dyn Error + Send + Sync>)
    }

    fn texts(status: &Status) -> Vec<String> {
        status.sources().map(ToString::to_string).collect()
    }

    fn received(causes: Metadata) -> Status {
        let metadata = AnswerMetadata { causes, ..AnswerMetadata::default() };
        Status::new(Code::Internal, "failed").received_with(&metadata)
    }

    #[test]
    fn causes_come_back_in_their_order() {
        let status = received(caused_by(&["no", "ä\n", ""]).causes(usize::MAX));
        assert_eq!(texts(&status), ["no", "ä\n", ""]);
        assert_eq!(format!("{status:#}"), "INTERNAL: failed: no: ä\n: ");
        assert_eq!(status.to_string(), "INTERNAL: failed");
        assert!(format!("{status:?}").ends_with(r#"source: ["no", "ä\n", ""] }"#), "{status:?}");
        assert_eq!(texts(&received(Metadata::new())), [""; 0]);
    }

    #[test]
    fn long_causes_are_cut_and_the_last_of_too_many_left_out() {
        let long = "ä".repeat(LONGEST);
        let sent = received(caused_by(&[&long]).causes(usize::MAX));
        let sign = "… (cut: 2,048 bytes)";
        assert_eq!(texts(&sent), ["ä".repeat((LONGEST - sign.len()) / 2) + sign]);
        let odd = format!("x{long}");
        let sent = received(caused_by(&[&odd]).causes(usize::MAX));
        assert_eq!(texts(&sent)[0].len(), LONGEST - 1);
        assert_eq!(texts(&received(caused_by(&["a"; 100]).causes(usize::MAX))).len(), MOST);
    }

    #[test]
    fn entries_without_room_are_left_out() {
        let status = caused_by(&["abc", "d"]);
        let all = status.causes(usize::MAX);
        assert_eq!(status.causes(all.size()), all);
        assert_eq!(texts(&received(status.causes(all.size() - 1))), ["abc"]);
        assert!(status.causes(0).is_empty());
    }

    #[test]
    fn a_peer_that_sends_too_many_makes_no_long_chain() {
        let mut causes = Metadata::new();
        (0..10_000).for_each(|_| assert!(causes.put_cause("x", usize::MAX)));
        assert_eq!(texts(&received(causes)).len(), MOST);
        let (mut others, mut causes) = (Metadata::new(), Metadata::new());
        others.receive(b"farcall-cause-bin", b"a\xffb", &mut causes).unwrap();
        others.receive(b"farcall-of-a-later-version", b"x", &mut causes).unwrap();
        assert_eq!((texts(&received(causes)), others.len()), (vec!["a\u{fffd}b".to_owned()], 0));
    }

    #[test]
    fn a_source_that_panics_leaves_those_before_it() {
        #[derive(Debug)]
        struct Bad;

        impl fmt::Display for Bad {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("no text")
            }
        }

        impl Error for Bad {}

        let inner = Status::new(Code::NotFound, "inner").with_source(Bad);
        let status = Status::new(Code::Internal, "outer").with_source(inner);
        assert_eq!(
            texts(&received(status.causes(usize::MAX))),
            ["NOT_FOUND: inner", "(the next cause has no text: its Display panicked)"]
        );
    }
}
