//! Metadata: what goes with a call, or with its answer, beside the content.

use std::fmt;
use std::str;

/// Names and values that go with a call, or with its answer, beside arguments and result: a token, the number of a trace,
/// how long a query took.
///
/// A value is text of printable ASCII; where its key ends in `-bin` it is bytes. A key may have several values. All of them keep
/// their order, and two `Metadata` are equal if they are so in the same order.
///
/// Keys have 1 to 255 characters out of `a` to `z`, `0` to `9`, `_`, `.` and `-`. Those given in upper case are made lower, and
/// looked up in any case. Those that begin with `farcall-` are farcall's own, neither set nor seen. A value has up to 65,535
/// bytes. Both sides say how long all of it may be:
/// `limits.max_metadata`.
///
/// ```
/// # use farcall_proto::metadata::{Metadata, MetadataError};
/// let mut metadata = Metadata::new();
/// metadata.insert("Tenant", "blue")?;
/// metadata.append("hop", "a")?;
/// metadata.append("hop", "b")?;
/// metadata.insert_bin("trace-bin", [7, 0, 255])?;
///
/// assert_eq!(metadata.get("tenant"), Some("blue"));
/// assert!(metadata.get_all("hop").eq(["a", "b"]));
/// assert_eq!(metadata.get_bin("trace-bin"), Some(&[7, 0, 255][..]));
/// assert!(metadata.insert("two words", "").is_err());
/// # Ok::<(), MetadataError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The entries as they travel (WIRE.md section 5.2), each checked when it was added. So they are sent and received in one
    /// piece, and those of a peer take no more memory here than on the wire.
    block: Vec<u8>,
}

/// The longest key.
const MAX_KEY: usize = u8::MAX as usize;

/// The longest value.
const MAX_VALUE: usize = u16::MAX as usize;

/// How keys of bytes end.
const BINARY: &str = "-bin";

/// How farcall's own keys begin.
const OWN: &str = "farcall-";

/// The one that there is: what a status was caused by.
const CAUSE: &str = "farcall-cause-bin";

impl Metadata {
    /// No metadata. Allocates nothing.
    pub const fn new() -> Self {
        Self { block: Vec::new() }
    }

    /// Sets the one value of a key, in place of those that it has. Fails if the key or the value can't be one, or if the key
    /// ends in `-bin`; then nothing has changed.
    pub fn insert(&mut self, key: &str, value: impl AsRef<str>) -> Result<(), MetadataError> {
        self.set(key, value.as_ref().as_bytes(), false)
    }

    /// Adds a value to those that a key has. Fails as [`insert`](Self::insert) does.
    pub fn append(&mut self, key: &str, value: impl AsRef<str>) -> Result<(), MetadataError> {
        self.add(key, value.as_ref().as_bytes(), false)
    }

    /// Sets the one value of a key that ends in `-bin`, in place of those that it has. Fails if the key or the value can't be
    /// one; then nothing has changed.
    pub fn insert_bin(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        self.set(key, value.as_ref(), true)
    }

    /// Adds a value to those of a key that ends in `-bin`. Fails as [`insert_bin`](Self::insert_bin) does.
    pub fn append_bin(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        self.add(key, value.as_ref(), true)
    }

    /// Adds all of these.
    pub fn extend(&mut self, others: &Self) {
        self.block.extend_from_slice(&others.block);
    }

    /// The first value of a key, unless that ends in `-bin`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.get_all(key).next()
    }

    /// The first value of a key that ends in `-bin`.
    pub fn get_bin(&self, key: &str) -> Option<&[u8]> {
        self.get_all_bin(key).next()
    }

    /// All values of a key, unless that ends in `-bin`.
    pub fn get_all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.values(key).filter_map(|value| match value {
            MetadataValue::Ascii(text) => Some(text),
            MetadataValue::Binary(_) => None,
        })
    }

    /// All values of a key that ends in `-bin`.
    pub fn get_all_bin(&self, key: &str) -> impl Iterator<Item = &[u8]> {
        self.values(key).filter_map(|value| match value {
            MetadataValue::Ascii(_) => None,
            MetadataValue::Binary(bytes) => Some(bytes),
        })
    }

    /// Takes out all values of a key. False: it had none.
    pub fn remove(&mut self, key: &str) -> bool {
        let mut kept = Self::new();
        let others = self.entries().filter(|(other, _)| !other.eq_ignore_ascii_case(key));
        others.for_each(|(key, value)| kept.put(key, value));
        let had = kept.size() < self.size();
        *self = kept;
        had
    }

    /// Keys and values, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        self.entries().filter_map(|(key, value)| {
            let value = if key.ends_with(BINARY) {
                MetadataValue::Binary(value)
            } else {
                MetadataValue::Ascii(str::from_utf8(value).ok()?)
            };
            Some((key, value))
        })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.entries().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// How long they are on the wire, in bytes: for each value 3, its own and those of its key. `limits.max_metadata`
    /// limits this number.
    pub fn size(&self) -> usize {
        self.block.len()
    }

    /// The entries as they travel.
    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Adds what a peer has sent, if it may. Causes go to `causes`; others of farcall's own, which are of later versions,
    /// nowhere.
    pub(crate) fn receive(
        &mut self,
        key: &[u8],
        value: &[u8],
        causes: &mut Self,
    ) -> Result<(), &'static str> {
        check(key, value)?;
        match str::from_utf8(key) {
            Ok(CAUSE) => causes.put(CAUSE, value),
            Ok(key) if !key.starts_with(OWN) => self.put(key, value),
            // All that has passed is ASCII.
            _ => {}
        }
        Ok(())
    }

    /// Adds a cause, if all of them are at most so many bytes with it.
    pub(crate) fn put_cause(&mut self, text: &str, room: usize) -> bool {
        let has_room = self.size() + 3 + CAUSE.len() + text.len() <= room;
        if has_room {
            self.put(CAUSE, text.as_bytes());
        }
        has_room
    }

    /// The texts of causes.
    pub(crate) fn causes(&self) -> impl Iterator<Item = &[u8]> {
        self.entries().filter(|(key, _)| *key == CAUSE).map(|(_, text)| text)
    }

    fn set(&mut self, key: &str, value: &[u8], binary: bool) -> Result<(), MetadataError> {
        let key = checked(key, value, binary)?;
        self.remove(&key);
        self.put(&key, value);
        Ok(())
    }

    fn add(&mut self, key: &str, value: &[u8], binary: bool) -> Result<(), MetadataError> {
        let key = checked(key, value, binary)?;
        self.put(&key, value);
        Ok(())
    }

    /// Adds an entry that has been checked.
    fn put(&mut self, key: &str, value: &[u8]) {
        debug_assert!(key.len() <= MAX_KEY && value.len() <= MAX_VALUE);
        self.block.push(key.len() as u8);
        self.block.extend_from_slice(key.as_bytes());
        self.block.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.block.extend_from_slice(value);
    }

    fn values(&self, key: &str) -> impl Iterator<Item = MetadataValue<'_>> {
        self.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    }

    fn entries(&self) -> Entries<'_> {
        Entries(&self.block)
    }
}

/// The entries of a block that has been checked.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&len, rest) = self.0.split_first()?;
        let (key, rest) = rest.split_at_checked(len.into())?;
        let (&len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u16::from_le_bytes(len).into())?;
        self.0 = rest;
        Some((str::from_utf8(key).ok()?, value))
    }
}

/// A key as it travels, if an application may set it to such a value.
fn checked(key: &str, value: &[u8], binary: bool) -> Result<String, MetadataError> {
    let lower = key.to_ascii_lowercase();
    let why = match check(lower.as_bytes(), value) {
        Err(why) => why,
        Ok(()) if lower.starts_with(OWN) => "keys that begin with `farcall-` are farcall's own",
        Ok(()) if binary && !lower.ends_with(BINARY) => {
            "the value is bytes, and the key does not end in `-bin`"
        }
        Ok(()) if !binary && lower.ends_with(BINARY) => "the value is text, and the key ends in `-bin`",
        Ok(()) => return Ok(lower),
    };
    Err(MetadataError { key: key.to_owned(), why })
}

/// Checks an entry. `Err` names the fault.
fn check(key: &[u8], value: &[u8]) -> Result<(), &'static str> {
    let in_keys = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
    let printable = |byte: &u8| matches!(byte, b' '..=b'~');
    if key.is_empty() || key.len() > MAX_KEY {
        Err("the key has no characters, or more than 255")
    } else if !key.iter().all(in_keys) {
        Err("the key has another character than `a` to `z`, `0` to `9`, `_`, `.` and `-`")
    } else if value.len() > MAX_VALUE {
        Err("the value has more than 65535 bytes")
    } else if !key.ends_with(BINARY.as_bytes()) && !value.iter().all(printable) {
        Err("the value is not printable ASCII, and the key does not end in `-bin`")
    } else {
        Ok(())
    }
}

/// Keys, and the lengths of their values: those may be secrets, and this goes to logs.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries().map(|(key, value)| (key, value.len()))).finish()
    }
}

/// A value of [`Metadata`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MetadataValue<'a> {
    /// Printable ASCII.
    Ascii(&'a str),
    /// Any bytes: the key ends in `-bin`.
    Binary(&'a [u8]),
}

/// Its length, for the same reason.
impl fmt::Debug for MetadataValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ascii(text) => write!(f, "Ascii({} bytes)", text.len()),
            Self::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// A key and a value that can't be metadata: the program that has put them together is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataError {
    key: String,
    why: &'static str,
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metadata of key {:?}: {}", self.key, self.why)
    }
}

impl std::error::Error for MetadataError {}

/// The metadata of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerMetadata {
    /// Known before the result.
    pub initial: Metadata,
    /// Known when the result is.
    pub trailing: Metadata,
    /// The causes of the status that is the answer.
    pub causes: Metadata,
}

impl AnswerMetadata {
    /// Adds those of another.
    pub fn extend(&mut self, others: &Self) {
        self.initial.extend(&others.initial);
        self.trailing.extend(&others.trailing);
    }

    /// Whether there are none of either.
    pub fn is_empty(&self) -> bool {
        self.initial.is_empty() && self.trailing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lower_case_and_checked() {
        let mut metadata = Metadata::new();
        metadata.insert("X-User_id.2", "ann").unwrap();
        metadata.append_bin("Raw-BIN", [0, 255]).unwrap();
        assert!(metadata.iter().map(|(key, _)| key).eq(["x-user_id.2", "raw-bin"]));
        assert_eq!(metadata.get("x-USER_id.2"), Some("ann"));

        let long = "k".repeat(256);
        for key in
            ["", "two words", "käse", "a/b", "a:b", ":path", "a\0", &long, "farcall-x", "Farcall-X", "a-bin"]
        {
            let error = metadata.insert(key, "v").unwrap_err();
            assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
        }
        assert!(metadata.insert_bin("a-bin-", "").is_err());
        assert!(metadata.insert_bin("farcall-bin", "").is_err());
        for value in ["tab\t", "line\n", "del\x7f", "umläut", "\0"] {
            assert!(metadata.append("a", value).is_err(), "{value:?}");
        }
        assert_eq!(metadata.len(), 2, "what is refused changes nothing");
        metadata.insert(&long[1..], " !~").unwrap();
    }

    #[test]
    fn values_have_a_longest_length() {
        let mut metadata = Metadata::new();
        metadata.insert_bin("a-bin", vec![7; MAX_VALUE]).unwrap();
        assert_eq!(metadata.get_bin("a-bin").unwrap().len(), MAX_VALUE);
        assert!(metadata.insert_bin("a-bin", vec![7; MAX_VALUE + 1]).is_err());
        assert_eq!(metadata.size(), 3 + "a-bin".len() + MAX_VALUE);
    }

    #[test]
    fn values_of_a_key_keep_their_order_until_one_takes_their_place() {
        let mut metadata = Metadata::new();
        assert!(metadata.is_empty());
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            metadata.append(key, value).unwrap();
        }
        assert!(metadata.get_all("a").eq(["1", "3"]));
        assert_eq!((metadata.get("a"), metadata.get_bin("a")), (Some("1"), None));
        metadata.insert("A", "4").unwrap();
        assert!(metadata.get_all("a").eq(["4"]));
        assert!(metadata.remove("B") && !metadata.remove("b"));
        assert_eq!((metadata.len(), metadata.size()), (1, 5));

        let mut others = Metadata::new();
        others.append_bin("c-bin", b"5").unwrap();
        metadata.extend(&others);
        let all = [("a", MetadataValue::Ascii("4")), ("c-bin", MetadataValue::Binary(b"5"))];
        assert!(metadata.iter().eq(all));
    }

    #[test]
    fn debug_shows_no_values() {
        let mut metadata = Metadata::new();
        metadata.insert("token", "s3cr3t").unwrap();
        metadata.insert_bin("key-bin", b"s3cr3t!").unwrap();
        assert_eq!(format!("{metadata:?}"), r#"{"token": 6, "key-bin": 7}"#);
        let values: Vec<_> = metadata.iter().map(|(_, value)| value).collect();
        assert_eq!(format!("{values:?}"), "[Ascii(6 bytes), Binary(7 bytes)]");
        let error = metadata.insert("token", "s3cr3t\n").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("s3cr3t"));
    }
}
