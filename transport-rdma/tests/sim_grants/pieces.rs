//! Lent memory that lies in several pieces.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::loans::{self, LEN, expected};
use crate::near::Near;
use crate::setup::PATIENCE;
use crate::writable_loans::{self as writable, Page, looked_at};

/// Where the pieces of the page begin and end. One of them is empty.
const ENDS: [usize; 5] = [0, 40_001, 40_001, 200_000, LEN];

fn pieces(page: &Bytes, ends: &[usize]) -> Vec<Bytes> {
    ends.windows(2).map(|ends| page.slice(ends[0]..ends[1])).collect()
}

/// How many pieces a range touches.
fn touched(range: &Range<usize>) -> usize {
    ENDS.windows(2).filter(|ends| range.start.max(ends[0]) < range.end.min(ends[1])).count()
}

#[tokio::test]
async fn the_server_reads_across_pieces_by_itself() {
    let mut lender = loans::Lender::new(None).await;
    let count = lender.t.reads.clone();
    let reads = || count.load(Ordering::Relaxed);
    loop {
        let (call, loan) = lender.lend_this(pieces(&lender.page, &ENDS));
        let (lent, answer) = lender.arrived().await;
        let is_direct = lender.is_direct(&lent).await;
        for range in [0..1, 40_000..40_001, 40_000..40_002, 40_001..40_009, 39_000..41_000, 199_999..200_001]
        {
            let before = reads();
            assert!(lent.read(range.clone()).await.unwrap()[..] == expected(range.clone()), "{range:?}");
            if is_direct {
                assert_eq!(reads() - before, touched(&range), "{range:?}");
            }
        }
        for range in [0..LEN, 1..LEN - 1, 39_999..200_001, LEN - 1..LEN, LEN..LEN] {
            assert!(lent.read(range.clone()).await.unwrap()[..] == expected(range.clone()), "{range:?}");
        }
        drop((lent, answer));
        call.await.unwrap().unwrap();
        let back = tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
        assert_eq!(back.len(), ENDS.len() - 1);
        if is_direct {
            break;
        }
    }
    lender.t.until(|t| t.bound() == 0).await;
}

impl loans::Lender {
    /// Lends memory in a call that reads it. Returns whether the server did so by itself.
    async fn is_read_directly(&mut self, memory: Vec<Bytes>) -> bool {
        let len = memory.iter().map(Bytes::len).sum();
        let (call, loan) = self.lend_this(memory);
        let (lent, answer) = self.arrived().await;
        let is_direct = self.is_direct(&lent).await;
        assert!(lent.read(..).await.unwrap()[..] == expected(0..len));
        drop((lent, answer));
        call.await.unwrap().unwrap();
        tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
        is_direct
    }

    /// Lends pieces until the server reads them by itself.
    async fn until_read_directly(&mut self) {
        let halves = pieces(&self.page, &[0, LEN / 2, LEN]);
        let direct = async { while !self.is_read_directly(halves.clone()).await {} };
        tokio::time::timeout(PATIENCE, direct).await.expect("no read is direct");
    }
}

/// Pieces that are many, short, or not the device's are read by messages.
#[tokio::test]
async fn other_pieces_are_read_by_messages() {
    let mut lender = loans::Lender::new(None).await;
    lender.until_read_directly().await;
    let many: Vec<_> = (0..=17).map(|n| n * LEN / 17).collect();
    let elsewhere = Bytes::from(expected(200_000..LEN));
    let cases = [
        pieces(&lender.page, &many),
        pieces(&lender.page, &[0, 1000, 30_000]),
        vec![lender.page.slice(..200_000), elsewhere],
    ];
    for memory in cases {
        // More often than there are windows.
        for _ in 0..100 {
            assert!(!lender.is_read_directly(memory.clone()).await, "{} pieces", memory.len());
        }
        lender.until_read_directly().await;
    }
    lender.t.until(|t| t.bound() == 0).await;
}

#[tokio::test]
async fn the_server_writes_across_pieces_by_itself() {
    const EACH: usize = writable::LEN;
    let mut lender = writable::Lender::new(|host| Near { host, cipher: None });
    let take = async |t: &_| vec![Page::take(t).await, Page::take(t).await, Page::take(t).await];
    let (call, loan, lent) = lender.lend_this_directly(take).await;
    assert_eq!(lender.t.bound(), 3);
    let mut written = vec![0xc5; 3 * EACH];
    written[8..16].fill(1);
    for (byte, range) in [
        (2, EACH - 1..EACH + 1),
        (3, EACH + 100..2 * EACH + 9),
        (4, 2 * EACH..2 * EACH + 1),
        (5, 30_000..3 * EACH),
    ] {
        lent.write(range.start, vec![byte; range.len()]).await.unwrap();
        written[range].fill(byte);
    }
    call.abort();
    let _ = call.await;
    drop(lent);
    let pages = tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
    let seen: Vec<u8> =
        pages.into_iter().flat_map(|page| looked_at(page).1[64..64 + EACH].to_vec()).collect();
    assert!(seen == written);
    lender.t.until(|t| t.bound() == 0).await;
}
