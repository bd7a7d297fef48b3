//! The memory that protobuf messages take once they are decoded.
//!
//! prost says nothing of memory, so farcall counts what it can see. Messages within the message are counted beforehand, because
//! two bytes are enough for one. Numbers and strings are counted while prost reads them.

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::payload::{Decoder, TooLarge};

/// prost refuses messages that are nested deeper.
const DEPTH: usize = 100;

/// Memory is taken in steps of so many bytes.
const STEP: usize = 4096;

/// Returns the memory that messages within a message may take beside numbers and strings, at `each` bytes for one. The bytes do
/// not say which fields are messages, so each that could be one counts. Fields before an error count, too, because prost reads
/// them.
/// Source: protobuf.dev, "Encoding".
pub(super) fn of_messages(mut message: &[u8], each: usize) -> usize {
    fields(&mut message, None, DEPTH, each).0
}

/// Reads fields, of a group or of a whole message. Returns the memory of the messages among them, and whether they end as they
/// must: a group by its end, and a message with its last byte.
fn fields(message: &mut &[u8], group: Option<u32>, depth: usize, each: usize) -> (usize, bool) {
    let mut memory = 0_usize;
    while !message.is_empty() {
        match field(message, depth, each) {
            Field::Of(bytes) => memory = memory.saturating_add(bytes),
            Field::Broken(bytes) => return (memory.saturating_add(bytes), false),
            Field::End(tag) => return (memory, group == Some(tag)),
        }
    }
    (memory, group.is_none())
}

/// A field, as far as it counts.
enum Field {
    /// A field with the memory of the message that it may be.
    Of(usize),
    /// A field that does not end as it must, with the memory of what stands before the error.
    Broken(usize),
    /// The end of the group of this number.
    End(u32),
}

fn field(message: &mut &[u8], depth: usize, each: usize) -> Field {
    let whole = |read: Option<()>| if read.is_some() { Field::Of(0) } else { Field::Broken(0) };
    let Ok((tag, kind)) = decode_key(message) else { return Field::Broken(0) };
    match kind {
        WireType::Varint => whole(decode_varint(message).ok().map(drop)),
        WireType::ThirtyTwoBit => whole(message.split_off(..4).map(drop)),
        WireType::SixtyFourBit => whole(message.split_off(..8).map(drop)),
        WireType::EndGroup => Field::End(tag),
        WireType::StartGroup => {
            let Some(depth) = depth.checked_sub(1) else { return Field::Broken(0) };
            let (memory, ends) = fields(message, Some(tag), depth, each);
            let memory = memory.saturating_add(each);
            if ends { Field::Of(memory) } else { Field::Broken(memory) }
        }
        WireType::LengthDelimited => {
            let length = decode_varint(message).ok().and_then(|length| usize::try_from(length).ok());
            let Some(mut content) = length.and_then(|length| message.split_off(..length)) else {
                return Field::Broken(0);
            };
            let Some(depth) = depth.checked_sub(1) else { return Field::Of(0) };
            let (memory, ends) = fields(&mut content, None, depth, each);
            Field::Of(if ends { memory.saturating_add(each) } else { memory })
        }
    }
}

/// The bytes of a message, as prost reads them. It ends early if what was read takes more memory than it may.
pub(super) struct Counted<'a> {
    body: Bytes,
    input: &'a mut Decoder,
    /// The memory that the values read so far take, as far as it is not counted yet, in bytes.
    memory: usize,
    refusal: Option<TooLarge>,
}

impl<'a> Counted<'a> {
    pub(super) fn new(body: Bytes, input: &'a mut Decoder) -> Self {
        Self { body, input, memory: 0, refusal: None }
    }

    /// Returns the error of memory, if there was one. Then nothing that prost has returned counts.
    pub(super) fn finish(mut self) -> Result<(), TooLarge> {
        self.count();
        self.refusal.map_or(Ok(()), Err)
    }

    #[cold]
    fn count(&mut self) {
        if let Err(refusal) = self.input.take_memory(std::mem::take(&mut self.memory)) {
            self.refusal = Some(refusal);
            self.body = Bytes::new();
        }
    }
}

impl Buf for Counted<'_> {
    #[inline]
    fn remaining(&self) -> usize {
        self.body.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.body
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.body.advance(bytes);
        // A number of up to eight bytes, or a string. Lists have room for up to twice what is in them.
        self.memory += match bytes {
            4 => 8,
            ..=10 => 16,
            bytes => bytes,
        };
        if self.memory >= STEP {
            self.count();
        }
    }

    /// Returns a view, which takes no memory. A field of type `Vec<u8>` is copied from it. The copy is not counted: it is no longer
    /// than the message, which is.
    #[inline]
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.body.split_to(len)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::codec::{CodecError, Decode, Prost, from_payload};
    use crate::payload::Payload;

    #[derive(Clone, PartialEq, Message)]
    struct Tree {
        #[prost(message, repeated, tag = "1")]
        children: Vec<Self>,
        #[prost(string, repeated, tag = "2")]
        names: Vec<String>,
        #[prost(float, repeated, tag = "3")]
        weights: Vec<f32>,
        #[prost(uint64, repeated, tag = "4")]
        counts: Vec<u64>,
        #[prost(bytes = "bytes", tag = "5")]
        page: Bytes,
    }

    const MIB: usize = 1 << 20;

    /// Decodes a message whose values may take 8 MiB.
    fn received(body: Vec<u8>) -> Result<Tree, CodecError> {
        let mut input = Decoder::new(Payload::from_body(body.into()));
        input.limit_memory(8 * MIB as u32);
        <Prost as Decode<Tree>>::decode(&mut input)
    }

    fn nested() -> Tree {
        Tree { children: vec![Tree::default(); 40_000], ..Tree::default() }
    }

    #[test]
    fn ordinary_messages_are_not_in_the_way() {
        let child = Tree { names: vec!["a name of some length".into(); 5], ..Tree::default() };
        for tree in [
            Tree { children: vec![child; 8000], ..Tree::default() },
            Tree { weights: vec![0.5; MIB - 1000], ..Tree::default() },
            Tree { counts: (0..MIB as u64 / 2 - 1000).collect(), ..Tree::default() },
            Tree { names: vec!["x".repeat(7 * MIB)], ..Tree::default() },
            Tree { page: Bytes::from(vec![b' '; 60 * MIB]), ..Tree::default() },
        ] {
            assert!(received(tree.encode_to_vec()).unwrap() == tree);
        }
    }

    #[test]
    fn bytes_that_would_fill_the_memory_are_refused() {
        for bomb in [
            Tree { counts: vec![1; MIB], ..Tree::default() },
            Tree { weights: vec![0.5; 2 * MIB], ..Tree::default() },
            Tree { names: vec![String::new(); 40_000], ..Tree::default() },
            Tree { names: vec!["x".repeat(1000); 9000], ..Tree::default() },
            Tree { children: vec![nested()], ..Tree::default() },
            nested(),
        ] {
            let why = received(bomb.encode_to_vec()).unwrap_err();
            assert!(why.is_too_large(), "{why}");
        }
    }

    #[test]
    fn structs_count_as_large_as_the_service_says() {
        let tree = Tree { children: vec![Tree::default(); 10_000], ..Tree::default() };
        assert!(received(tree.encode_to_vec()).is_ok());
        let mut input = Decoder::new(Payload::from_body(tree.encode_to_vec().into()));
        input.limit_memory(8 * MIB as u32);
        let why = <Prost<1024> as Decode<Tree>>::decode(&mut input).unwrap_err();
        assert!(why.is_too_large(), "{why}");
    }

    #[test]
    fn short_messages_count_too() {
        let decoded = |children| {
            let tree = Tree { children: vec![Tree::default(); children], ..Tree::default() };
            let mut input = Decoder::new(Payload::from_body(tree.encode_to_vec().into()));
            input.limit_memory(16 << 10);
            <Prost as Decode<Tree>>::decode(&mut input)
        };
        assert!(decoded(20).is_ok());
        assert!(decoded(100).unwrap_err().is_too_large());
    }

    #[test]
    fn a_short_message_of_large_structs_counts() {
        let tree = Tree { children: vec![Tree::default(); 100], ..Tree::default() };
        let body = Bytes::from(tree.encode_to_vec());
        assert!(body.len() <= 256, "{}", body.len());
        let mut input = Decoder::new(Payload::from_body(body));
        input.limit_memory(MIB as u32);
        let why = <Prost<65_536> as Decode<Tree>>::decode(&mut input).unwrap_err();
        assert!(why.is_too_large(), "{why}");
    }

    #[test]
    fn pages_of_one_byte_are_not_taken_for_messages() {
        for byte in 0..=u8::MAX {
            let tree = Tree { page: Bytes::from(vec![byte; MIB]), ..Tree::default() };
            let decoded = received(tree.encode_to_vec());
            assert!(decoded.is_ok_and(|decoded| decoded == tree), "{byte:#x}");
        }
    }

    #[test]
    fn settings_before_an_error_count() {
        let why = received([&nested().encode_to_vec()[..], &[0xff]].concat()).unwrap_err();
        assert!(why.is_too_large(), "{why}");
    }

    #[test]
    fn a_page_stays_a_view() {
        let tree = Tree { page: Bytes::from(vec![7; 100_000]), ..Tree::default() };
        let body = Bytes::from(tree.encode_to_vec());
        let page = from_payload::<Prost, Tree>(Payload::from_body(body.clone())).unwrap().page;
        assert_eq!(page.as_ptr(), body[body.len() - page.len()..].as_ptr());
    }
}
