//! Payloads that are compressed: on their way out, and before they are unpacked.

use bytes::Bytes;

use super::{Body, Payload, Rest};
use crate::compression::Compression;

/// The state of a payload before it was compressed. Its body is then all of it, and it has no attachments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    by: Compression,
    body: u32,
    attachments: Vec<u32>,
}

impl Packed {
    /// Describes this payload, if none of its parts has 4 GiB.
    pub(crate) fn of(payload: &Payload, by: Compression) -> Option<Self> {
        let len = |len: usize| u32::try_from(len).ok();
        let attachments = payload.attachments().iter().map(|attachment| len(attachment.len()));
        Some(Self { by, body: len(payload.body_len())?, attachments: attachments.collect::<Option<_>>()? })
    }

    /// As a peer says.
    pub(crate) fn new(by: Compression, body: u32, attachments: Vec<u32>) -> Self {
        Self { by, body, attachments }
    }

    /// Returns what the payload is compressed by.
    pub fn by(&self) -> Compression {
        self.by
    }

    /// The length of the body.
    pub(crate) fn body(&self) -> u32 {
        self.body
    }

    /// The lengths of the attachments.
    pub(crate) fn attachments(&self) -> &[u32] {
        &self.attachments
    }

    /// The length of all of it.
    pub fn unpacked_len(&self) -> u64 {
        u64::from(self.body) + self.attachments.iter().map(|len| u64::from(*len)).sum::<u64>()
    }

    /// Returns the payload, of [so many](Self::unpacked_len) bytes. `None`: there is no memory for the list of attachments.
    pub(crate) fn split(self, mut whole: Bytes) -> Option<Payload> {
        let body = whole.split_to(self.body as usize);
        let mut attachments = Vec::new();
        attachments.try_reserve_exact(self.attachments.len()).ok()?;
        attachments.extend(self.attachments.iter().map(|len| whole.split_to(*len as usize)));
        Some(Payload::new(body, attachments))
    }
}

impl Payload {
    /// Makes a payload of the compressed bytes of another.
    pub(crate) fn packed(bytes: Bytes, packed: Packed) -> Self {
        let rest = Rest { packed: Some(packed), ..Rest::default() };
        Self { body: Body::Shared(bytes), rest: Some(Box::new(rest)) }
    }

    /// Returns the state before compression, if the payload is compressed.
    pub fn as_packed(&self) -> Option<&Packed> {
        self.rest.as_ref()?.packed.as_ref()
    }

    /// Takes the payload apart: its body, and how it was packed.
    pub(crate) fn into_packed(self) -> Option<(Bytes, Packed)> {
        Some((self.body.into_bytes(), self.rest?.packed?))
    }

    /// Returns the algorithm that the payload is compressed by.
    pub fn compression(&self) -> Compression {
        self.as_packed().map_or(Compression::None, Packed::by)
    }

    /// Returns all of it in one piece: a copy, if it is in several. `None`: there is no memory for the copy.
    pub(crate) fn to_contiguous(&self) -> Option<Bytes> {
        if self.rest.is_none() {
            return Some(self.body.clone().into_bytes());
        }
        let mut whole = Vec::new();
        whole.try_reserve_exact(self.len()).ok()?;
        whole.extend_from_slice(&self.body);
        self.more().iter().chain(self.attachments()).for_each(|piece| whole.extend_from_slice(piece));
        Some(whole.into())
    }
}
