//! Calls that lend memory of each kind.

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, Rights};
use farcall::{Buf, Bytes};

use super::{LENT, LentClient};

/// A kind of memory that is lent.
pub(super) enum Memory {
    /// No device can use it.
    Vectors,
    /// It is registered.
    Buffers,
    /// It is registered, and lies in several pieces.
    Pieces,
    /// Ranges of regions, to be read and to be written.
    Regions(Region, Region),
}

/// The places of ranges in the two regions.
const AT: [usize; 2] = [16, 24];

impl Memory {
    pub(super) fn all() -> [Self; 4] {
        let [from, into] = [(); 2].map(|()| Region::zeroed(LENT + 24, Rights::NONE));
        [Self::Vectors, Self::Buffers, Self::Pieces, Self::Regions(from, into)]
    }

    /// Lends bytes, and as much memory, to a call that copies them. Returns the copy. Without a length of pieces, the server copies them
    /// through a region of its own.
    pub(super) async fn copy(&self, lender: &LentClient, bytes: &Bytes, piece: Option<usize>) -> Vec<u8> {
        let len = bytes.len();
        let copy = async |from, into| match piece {
            Some(piece) => lender.copy(from, into, piece).await.unwrap(),
            None => lender.copy_through(from, into).await.unwrap(),
        };
        match self {
            Self::Vectors => {
                let (into, loan) = BulkWrite::lend(vec![0; len]);
                copy(bytes.clone().into(), into).await;
                loan.reclaim().await
            }
            Self::Buffers => {
                let (into, loan) = BulkWrite::lend(zeroes(len));
                copy(buffer(bytes).freeze().into(), into).await;
                loan.reclaim().await.to_vec()
            }
            Self::Pieces => {
                let (first, second) = (len / 3, len / 2);
                let pieces =
                    [0..first, first..second, second..len].map(|piece| buffer(&bytes[piece]).freeze());
                let (from, _loan) = BulkRead::lend(pieces.to_vec());
                // They end elsewhere than those that are read.
                let (into, loan) = BulkWrite::lend(vec![zeroes(len - second), zeroes(second)]);
                copy(from, into).await;
                loan.reclaim().await.iter().flat_map(|piece| piece.to_vec()).collect()
            }
            Self::Regions(from, into) => {
                from.write(AT[0], bytes).unwrap();
                let (lent, from_loan) = BulkRead::of_region(from, AT[0]..AT[0] + len).unwrap();
                let (to, into_loan) = BulkWrite::of_region(into, AT[1]..AT[1] + len).unwrap();
                copy(lent, to).await;
                from_loan.reclaim().await;
                into_loan.reclaim().await;
                into.read(AT[1]..AT[1] + len).unwrap()
            }
        }
    }
}

fn buffer(bytes: &[u8]) -> Buf {
    let mut buf = farcall::buf(bytes.len());
    buf.put_slice(bytes);
    buf
}

fn zeroes(len: usize) -> Buf {
    let mut buf = farcall::buf(len);
    buf.resize(len);
    buf
}
