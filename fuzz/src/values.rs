//! Codecs: arguments, results and errors.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use farcall::details::RpcStatus;
use farcall_core::codec::{Carry, Postcard, Prost, Raw, from_payload, to_payload};
use farcall_core::proto::payload::Payload;
use serde::{Deserialize, Serialize};

/// A value with every shape that Postcard treats in its own way.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// Nothing.
    Nothing,
    /// Numbers of every width.
    Numbers(u8, i16, u32, i64, u128, bool, char),
    /// Text and bytes, which may be attachments.
    Bytes { text: String, short: Vec<u8>, long: Bytes },
    /// Values in values.
    Many(Vec<Self>),
    /// Keys and values.
    Map(BTreeMap<String, Option<i32>>),
    /// Types of the standard library.
    Std(Duration, IpAddr, Result<u8, String>),
    /// A value that need not be there.
    Maybe(Option<Box<Self>>),
}

/// Reads the input as a payload of each codec: its first byte says how many attachments the rest is cut into.
pub fn values(data: &[u8]) {
    let Some((&attachments, rest)) = data.split_first() else { return };
    let payload = payload(usize::from(attachments % 4), rest);
    there_and_back::<Postcard, Value>(&payload);
    there_and_back::<Postcard, (Bytes, Bytes, String)>(&payload);
    there_and_back::<Postcard, BTreeMap<u16, Vec<String>>>(&payload);
    there_and_back::<Raw, Bytes>(&payload);
    there_and_back::<Prost, RpcStatus>(&payload);
}

fn payload(attachments: usize, mut rest: &[u8]) -> Payload {
    let piece = rest.len() / (attachments + 1);
    let mut cut = || {
        let (first, behind) = rest.split_at(piece);
        rest = behind;
        Bytes::copy_from_slice(first)
    };
    let attachments = (0..attachments).map(|_| cut()).collect();
    Payload::new(Bytes::copy_from_slice(rest), attachments)
}

/// Decodes a payload. A value that decodes must survive encoding and decoding unchanged.
fn there_and_back<C: Carry<T>, T: PartialEq + std::fmt::Debug>(payload: &Payload) {
    if let Ok(value) = from_payload::<C, T>(payload.clone()) {
        let again = to_payload::<C, T>(&value).expect("what was decoded can be encoded");
        assert_eq!(from_payload::<C, T>(again), Ok(value));
    }
}
