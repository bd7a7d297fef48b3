//! ACCESS and ACCESSED: reading and writing memory of the other side (WIRE.md section 5.7).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};

/// The memory that an access is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Memory that a call lends.
    Loan {
        /// The call.
        call: u64,
        /// The number that its arguments name.
        number: u64,
    },
    /// Memory that is exported, by number and key.
    Region {
        /// The number of the region in its process.
        number: u64,
        /// The key, without which nobody may use it.
        key: u128,
    },
}

/// The operation of an access, from an offset on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads so many bytes.
    Read(u32),
    /// Writes these bytes.
    Write(Bytes),
    /// Replaces the eight bytes by `new` if they are `expected`. Both are little-endian numbers.
    CompareAndSwap {
        /// The value that is replaced.
        expected: u64,
        /// The value that replaces it.
        new: u64,
    },
    /// Adds to the eight bytes, a little-endian number, which wraps.
    FetchAdd(u64),
    /// Asks for the grant to use a region without its owner's program.
    Grant,
    /// Takes back a grant of memory of the sender's.
    Withdraw,
    /// Grants what a call of the sender's lends. There is no outcome.
    Offer(Granted),
    /// Gives a grant of a loan back, because it is used no more. There is no outcome.
    Return,
}

/// ACCESS: an access to memory of the receiver. Its number is in the header's `call`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The memory.
    pub target: Target,
    /// Where in the memory the operation begins, in bytes.
    pub offset: u64,
    /// The operation.
    pub operation: Operation,
}

impl Access {
    const LOAN: u8 = 0;
    const REGION: u8 = 1;
    const READ: u8 = 0;
    const WRITE: u8 = 1;
    const COMPARE_AND_SWAP: u8 = 2;
    const FETCH_ADD: u8 = 3;
    const GRANT: u8 = 4;
    const WITHDRAW: u8 = 5;
    const OFFER: u8 = 6;
    const RETURN: u8 = 7;

    /// Appends the payload, without the bytes of a [write](Operation::Write): these go behind it.
    pub fn encode_head(&self, out: &mut BytesMut) {
        match self.target {
            Target::Loan { call, number } => {
                out.put_u8(Self::LOAN);
                out.put_u64_le(number);
                out.put_u64_le(call);
            }
            Target::Region { number, key } => {
                out.put_u8(Self::REGION);
                out.put_u64_le(number);
                out.put_u128_le(key);
            }
        }
        out.put_u64_le(self.offset);
        match &self.operation {
            &Operation::Read(len) => {
                out.put_u8(Self::READ);
                out.put_u32_le(len);
            }
            Operation::Write(_) => out.put_u8(Self::WRITE),
            &Operation::CompareAndSwap { expected, new } => {
                out.put_u8(Self::COMPARE_AND_SWAP);
                out.put_u64_le(expected);
                out.put_u64_le(new);
            }
            &Operation::FetchAdd(add) => {
                out.put_u8(Self::FETCH_ADD);
                out.put_u64_le(add);
            }
            Operation::Grant => out.put_u8(Self::GRANT),
            Operation::Withdraw => out.put_u8(Self::WITHDRAW),
            Operation::Offer(granted) => {
                out.put_u8(Self::OFFER);
                granted.encode(out);
            }
            Operation::Return => out.put_u8(Self::RETURN),
        }
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_head(out);
        if let Operation::Write(bytes) = &self.operation {
            out.put_slice(bytes);
        }
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let target = match r.u8("access.target")? {
            Self::LOAN => {
                let number = r.u64("access.number")?;
                Target::Loan { call: r.u64("access.loan")?, number }
            }
            Self::REGION => {
                let number = r.u64("access.number")?;
                let (low, high) = (r.u64("access.key")?, r.u64("access.key")?);
                Target::Region { number, key: u128::from(high) << 64 | u128::from(low) }
            }
            _ => return Err(WireError::new("access.target", "is unknown")),
        };
        let offset = r.u64("access.offset")?;
        let operation = match r.u8("access.operation")? {
            Self::READ => Operation::Read(r.u32("access.length")?),
            Self::WRITE => return Ok(Self { target, offset, operation: Operation::Write(r.rest()) }),
            Self::COMPARE_AND_SWAP => {
                Operation::CompareAndSwap { expected: r.u64("access.expected")?, new: r.u64("access.new")? }
            }
            Self::FETCH_ADD => Operation::FetchAdd(r.u64("access.add")?),
            Self::GRANT => Operation::Grant,
            Self::WITHDRAW => Operation::Withdraw,
            Self::OFFER => {
                let operation = Operation::Offer(Granted::decode(r.rest())?);
                return Ok(Self { target, offset, operation });
            }
            Self::RETURN => Operation::Return,
            _ => return Err(WireError::new("access.operation", "is unknown")),
        };
        r.finish("access")?;
        Ok(Self { target, offset, operation })
    }
}

/// The outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// It was done.
    Done = 0,
    /// The memory is no longer lent or exported, or never was. Nothing was done.
    Gone = 1,
    /// The memory may not be used like this. Nothing was done.
    Forbidden = 2,
    /// It is not within the memory, or a number of eight bytes is not at a multiple of eight. Nothing was done.
    OutOfRange = 3,
    /// The owner had no memory for the operation. Nothing was done.
    NoMemory = 4,
    /// A number may have been changed or not: the owner's device has failed meanwhile.
    Unknown = 5,
}

/// ACCESSED: the outcome of the access whose number is in the header's `call`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Accessed {
    /// The outcome.
    pub outcome: Outcome,
    /// The bytes that were read, the old value of a number, little-endian, or a [`Granted`].
    pub bytes: Bytes,
}

impl Accessed {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.outcome as u8);
        out.put_slice(&self.bytes);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let outcome = match r.u8("accessed.outcome")? {
            0 => Outcome::Done,
            1 => Outcome::Gone,
            2 => Outcome::Forbidden,
            3 => Outcome::OutOfRange,
            4 => Outcome::NoMemory,
            5 => Outcome::Unknown,
            _ => return Err(WireError::new("accessed.outcome", "is unknown")),
        };
        if outcome != Outcome::Done {
            r.finish("accessed")?;
            return Ok(Self { outcome, bytes: Bytes::new() });
        }
        Ok(Self { outcome, bytes: r.rest() })
    }
}

/// The bytes of a grant, in an ACCESSED or in an [offer](Operation::Offer).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The link that the grant is good for.
    pub epoch: u32,
    /// The sum of what may be done by it: [`READ`](Self::READ), [`WRITE`](Self::WRITE), [`ATOMICS`](Self::ATOMICS).
    pub rights: u8,
    /// Where the memory is, in the link's own form.
    pub descriptor: Bytes,
}

impl Granted {
    /// It is to be read.
    pub const READ: u8 = 1;

    /// It is to be written.
    pub const WRITE: u8 = 2;

    /// The device changes numbers in it.
    pub const ATOMICS: u8 = 4;

    /// The most bytes that the descriptor may have.
    pub const MAX_DESCRIPTOR: usize = 320;

    /// The most bytes that all of it may have.
    pub const MAX_LEN: usize = 5 + Self::MAX_DESCRIPTOR;

    /// Appends the bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.epoch);
        out.put_u8(self.rights);
        out.put_slice(&self.descriptor);
    }

    /// Reads the bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let (epoch, rights, descriptor) = (r.u32("granted.epoch")?, r.u8("granted.rights")?, r.rest());
        if descriptor.len() > Self::MAX_DESCRIPTOR {
            return Err(WireError::new("granted.descriptor", "is too long"));
        }
        // A view would keep the message, which may be long.
        Ok(Self { epoch, rights, descriptor: Bytes::copy_from_slice(&descriptor) })
    }
}
