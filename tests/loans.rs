//! Memory that a client lends for a call: what the server can do with it, and that it can't after the call.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod guarded;
mod moved;
mod over;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Buf, Bytes, Channel, Code, Executed, Result, Server, Status, Stream, Streaming, stream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use guarded::{Guard, Guarded, Within};
use moved::Moved;

/// A type of the application's own that holds a loan.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Page {
    number: u64,
    image: Option<BulkRead>,
}

#[farcall::service(package = "pages.v1")]
trait Pages {
    /// Returns the bytes of some ranges, which are read at once.
    async fn read(&self, from: BulkRead, ranges: Vec<(usize, usize)>) -> Result<Vec<Bytes>>;
    /// Writes pieces, all at once.
    async fn write(&self, into: BulkWrite, pieces: Vec<(usize, Bytes)>) -> Result<()>;
    /// Returns the number and the sum of the bytes of pages.
    async fn sum(&self, pages: Vec<Page>) -> Result<Vec<(u64, u64)>>;
    /// Keeps the loans after the call.
    async fn keep(&self, from: BulkRead, into: BulkWrite) -> Result<()>;
    /// Goes on writing in a task of its own, until that is not possible, and never returns.
    async fn flood(&self, into: BulkWrite) -> Result<()>;
    /// Keeps the loans, and never returns.
    async fn hang(&self, from: BulkRead, into: BulkWrite) -> Result<()>;
    /// Streams the bytes of the memory, one by one.
    fn bytes(&self, from: BulkRead) -> impl Stream<Item = Result<u8>>;
    /// Gives the loan back, which is not possible.
    async fn give_back(&self, from: BulkRead) -> Result<BulkRead>;
    /// Takes loans in a stream, which is not possible.
    async fn take(&self, pages: Streaming<Page>) -> Result<()>;
}

#[derive(Default)]
struct Disk {
    kept: Mutex<Option<(BulkRead, BulkWrite)>>,
    has_kept: Notify,
    flood: Mutex<Option<JoinHandle<Status>>>,
    has_flooded: Notify,
}

impl Disk {
    fn keep_both(&self, from: BulkRead, into: BulkWrite) {
        *self.kept.lock().unwrap() = Some((from, into));
        self.has_kept.notify_one();
    }
}

impl Pages for Arc<Disk> {
    async fn read(&self, from: BulkRead, ranges: Vec<(usize, usize)>) -> Result<Vec<Bytes>> {
        let reads = ranges.into_iter().map(|(start, end)| {
            let from = from.clone();
            tokio::spawn(async move { from.read(start..end).await })
        });
        let mut bytes = Vec::new();
        for read in reads.collect::<Vec<_>>() {
            bytes.push(read.await.unwrap()?);
        }
        Ok(bytes)
    }

    async fn write(&self, into: BulkWrite, pieces: Vec<(usize, Bytes)>) -> Result<()> {
        let writes = pieces.into_iter().map(|(offset, piece)| {
            let into = into.clone();
            tokio::spawn(async move { into.write(offset, piece).await })
        });
        for write in writes.collect::<Vec<_>>() {
            write.await.unwrap()?;
        }
        Ok(())
    }

    async fn sum(&self, pages: Vec<Page>) -> Result<Vec<(u64, u64)>> {
        let mut sums = Vec::new();
        for Page { number, image } in pages {
            let bytes = match image {
                Some(image) => image.read(..).await?,
                None => Bytes::new(),
            };
            sums.push((number, bytes.iter().map(|&byte| u64::from(byte)).sum()));
        }
        Ok(sums)
    }

    async fn keep(&self, from: BulkRead, into: BulkWrite) -> Result<()> {
        from.read(..1).await?;
        into.write(0, Bytes::from_static(b"1")).await?;
        self.keep_both(from, into);
        Ok(())
    }

    async fn flood(&self, into: BulkWrite) -> Result<()> {
        let disk = self.clone();
        let flood = async move {
            for byte in (0..=u8::MAX).cycle() {
                if let Err(status) = into.write(0, vec![byte; into.len()]).await {
                    return status;
                }
                disk.has_flooded.notify_one();
            }
            unreachable!("the loop has no end")
        };
        {
            // Held while the task begins, so that whoever hears of a write finds its task.
            let mut kept = self.flood.lock().unwrap();
            *kept = Some(tokio::spawn(flood));
        }
        pending().await
    }

    async fn hang(&self, from: BulkRead, into: BulkWrite) -> Result<()> {
        self.keep_both(from, into);
        pending().await
    }

    fn bytes(&self, from: BulkRead) -> impl Stream<Item = Result<u8>> {
        stream::generate(async move |bytes| {
            for at in 0..from.len() {
                bytes.send(from.read(at..=at).await?[0]).await;
            }
            Ok(())
        })
    }

    async fn give_back(&self, from: BulkRead) -> Result<BulkRead> {
        Ok(from)
    }

    async fn take(&self, mut pages: Streaming<Page>) -> Result<()> {
        while pages.message().await?.is_some() {}
        Ok(())
    }
}

async fn served() -> (Arc<Disk>, Channel, PagesClient) {
    let disk = Arc::<Disk>::default();
    let server = Server::builder().config(over::config()).add(PagesServer::new(disk.clone()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    (disk, channel.clone(), PagesClient::new(channel))
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_server_reads_any_ranges_at_once() {
    let (.., pages) = served().await;
    let bytes = Bytes::from(random(3 * MIB + 17, 1));
    let ranges =
        vec![(0, 0), (0, 1), (5, 70_000), (MIB, 3 * MIB), (bytes.len() - 1, bytes.len()), (0, bytes.len())];
    let (from, loan) = BulkRead::lend(bytes.clone());
    assert_eq!(from.len(), bytes.len());
    let read = pages.read(from, ranges.clone()).await.unwrap();
    for ((start, end), read) in ranges.into_iter().zip(read) {
        assert!(read == bytes[start..end], "{start}..{end}");
    }
    assert_eq!(soon(loan.reclaim()).await.as_ptr(), bytes.as_ptr());
}

#[tokio::test]
async fn a_server_writes_any_pieces_at_once() {
    let (.., pages) = served().await;
    let mut expected = random(5 * MIB, 2);
    let (into, loan) = BulkWrite::lend(expected.clone());
    let pieces = [(0, 1), (10, 100_000), (MIB, 2 * MIB + 12_345), (5 * MIB - 1, 1), (7, 0)];
    let pieces: Vec<_> =
        pieces.into_iter().map(|(at, len)| (at, Bytes::from(random(len, at as u64)))).collect();
    for (at, piece) in &pieces {
        expected[*at..at + piece.len()].copy_from_slice(piece);
    }
    pages.write(into, pieces).await.unwrap();
    assert!(soon(loan.reclaim()).await == expected);
}

#[tokio::test]
async fn memory_may_be_in_parts() {
    let (.., pages) = served().await;
    let lengths = [0, 10, 1, 0, 200_000, 7];
    let parts: Vec<_> = lengths.into_iter().enumerate().map(|(i, len)| random(len, i as u64)).collect();
    let whole = parts.concat();
    let (from, _loan) = BulkRead::lend(parts.iter().cloned().map(Bytes::from).collect::<Vec<_>>());
    let ranges = vec![(0, whole.len()), (9, 12), (10, 11), (11, 200_012), (whole.len(), whole.len())];
    let read = pages.read(from, ranges.clone()).await.unwrap();
    for ((start, end), read) in ranges.into_iter().zip(read) {
        assert!(read == whole[start..end], "{start}..{end}");
    }

    let (into, loan) = BulkWrite::lend(lengths.map(|len| vec![0; len]).to_vec());
    pages.write(into, vec![(0, whole[..8].to_vec().into()), (8, whole[8..].to_vec().into())]).await.unwrap();
    assert!(soon(loan.reclaim()).await == parts);
}

fn zeroes(len: usize) -> Buf {
    let mut buffer = farcall::buf(len);
    buffer.resize(len);
    buffer
}

#[tokio::test]
async fn a_part_that_is_written_as_a_whole_takes_the_bytes_over() {
    const LEN: usize = 200_000;
    let (.., pages) = served().await;
    let parts: Vec<_> = (0..3).map(|_| zeroes(LEN)).collect();
    let places: Vec<_> = parts.iter().map(|part| part.as_ptr() as usize).collect();
    let bytes: Vec<_> = (0..3).map(|seed| Bytes::from(random(LEN, seed))).collect();
    let (into, loan) = BulkWrite::lend(parts);
    pages.write(into.clone(), vec![(0, bytes[0].clone())]).await.unwrap();
    let half = bytes[1].slice(..LEN / 2);
    pages.write(into, vec![(LEN, half), (2 * LEN + 1, bytes[2].slice(1..))]).await.unwrap();
    let parts = soon(loan.reclaim()).await;
    assert!(
        parts[0][..] == bytes[0]
            && parts[1][..LEN / 2] == bytes[1][..LEN / 2]
            && parts[2][1..] == bytes[2][1..]
    );
    assert_eq!((parts[1][LEN / 2..].to_vec(), parts[2][0]), (vec![0; LEN / 2], 0));
    let moved: Vec<_> =
        parts.iter().zip(places).map(|(part, place)| part.as_ptr() as usize != place).collect();
    // A device writes to a registered buffer, which stays where it is.
    assert_eq!(moved, [!parts[0].is_registered(), false, false]);

    // A buffer can be lent again and again, and written to between.
    let mut buffer = zeroes(LEN);
    for round in 0..3 {
        let (into, loan) = BulkWrite::lend(buffer);
        pages.write(into, vec![(0, bytes[round].clone())]).await.unwrap();
        buffer = soon(loan.reclaim()).await;
        assert!(buffer[..] == bytes[round] && buffer.capacity() == LEN);
        if round == 1 {
            buffer[5] = !bytes[1][5];
            assert!(buffer[..5] == bytes[1][..5] && buffer[6..] == bytes[1][6..]);
        }
    }
    let (into, loan) = BulkWrite::lend(buffer);
    pages.write(into, vec![(10, bytes[0].slice(10..LEN - 10))]).await.unwrap();
    let frozen = soon(loan.reclaim()).await.freeze();
    assert!(frozen[..10] == bytes[2][..10] && frozen[10..LEN - 10] == bytes[0][10..LEN - 10]);
    assert!(frozen[LEN - 10..] == bytes[2][LEN - 10..]);
}

#[tokio::test]
async fn loans_travel_in_types_of_the_application() {
    let (.., pages) = served().await;
    let page = |number: u64| Page { number, image: Some(Bytes::from(vec![1; number as usize]).into()) };
    let none = Page { number: 9, image: None };
    let sums = pages.sum(vec![page(0), none, page(5000), page(70_000)]).await.unwrap();
    assert_eq!(sums, [(0, 0), (9, 0), (5000, 5000), (70_000, 70_000)]);
}

#[tokio::test]
async fn several_calls_lend_the_same_memory_and_it_comes_back_after_the_last() {
    let (disk, _, pages) = served().await;
    let (from, loan) = BulkRead::lend(Bytes::from(random(100_000, 3)));
    let (into, _other) = BulkWrite::lend(vec![0; 10]);
    let hanging = tokio::spawn({
        let (pages, from) = (pages.clone(), from.clone());
        async move { pages.hang(from, into).await }
    });
    disk.has_kept.notified().await;
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(pages.read(from.clone(), vec![(0, 100_000)]))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let mut reclaimed = Box::pin(loan.reclaim());
    assert!(reclaimed.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    hanging.abort();
    soon(reclaimed).await;
}

/// Checks that the server can do nothing with loans that have ended.
async fn is_over(disk: &Disk) {
    let (from, into) = disk.kept.lock().unwrap().take().unwrap();
    let read = from.read(..).await.unwrap_err();
    let write = into.write(0, Bytes::from_static(b"late")).await.unwrap_err();
    for status in [read, write] {
        assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No), "{status}");
        assert!(status.message().contains("its call has ended"), "{status}");
    }
}

#[tokio::test]
async fn a_loan_ends_when_its_call_returns() {
    let (disk, _, pages) = served().await;
    let (from, _loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
    let (into, loan) = BulkWrite::lend(vec![0; 100]);
    pages.keep(from, into).await.unwrap();
    is_over(&disk).await;
    let memory = soon(loan.reclaim()).await;
    assert_eq!((memory[0], &memory[1..]), (b'1', &[0; 99][..]));
}

#[tokio::test]
async fn another_call_that_lends_the_same_memory_revives_no_loan() {
    let (disk, _, pages) = served().await;
    let (from, _loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
    let (into, loan) = BulkWrite::lend(vec![0; 100]);
    pages.keep(from.clone(), into.clone()).await.unwrap();
    let (first_from, first_into) = disk.kept.lock().unwrap().take().unwrap();
    let hanging = tokio::spawn(pages.hang(from, into));
    disk.has_kept.notified().await;
    disk.has_kept.notified().await;
    assert_eq!(first_from.read(..).await.unwrap_err().code(), Code::Cancelled);
    assert_eq!(first_into.write(1, vec![7]).await.unwrap_err().code(), Code::Cancelled);
    hanging.abort();
    assert_eq!(soon(loan.reclaim()).await[1..], [0; 99]);
}

#[tokio::test]
async fn a_loan_ends_when_its_call_is_late_or_dropped() {
    let (disk, _, pages) = served().await;
    for timeout in [Some(Duration::from_millis(50)), None] {
        let (from, _loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
        let (into, loan) = BulkWrite::lend(vec![0; 100]);
        match timeout {
            Some(timeout) => {
                // The handler may not have begun when the time is over.
                let calling = async {
                    while disk.kept.lock().unwrap().is_none() {
                        let status =
                            pages.hang(from.clone(), into.clone()).timeout(timeout).await.unwrap_err();
                        assert_eq!(status.code(), Code::DeadlineExceeded);
                    }
                };
                soon(calling).await;
            }
            None => {
                let call = tokio::spawn(pages.hang(from, into));
                disk.has_kept.notified().await;
                call.abort();
                assert!(call.await.unwrap_err().is_cancelled());
            }
        }
        is_over(&disk).await;
        disk.has_kept.notify_one();
        disk.has_kept.notified().await;
        assert_eq!(soon(loan.reclaim()).await, [0; 100]);
    }
}

/// Gives calls up whose handlers go on writing, and looks at the memory when they can't any more.
async fn give_up<M: Guard + Send>() {
    let (disk, _, pages) = served().await;
    // The first buffers may not be such as a device can write to.
    for _ in 0..20 {
        let (into, loan) = BulkWrite::lend(M::new(200_000));
        let call = tokio::spawn(pages.flood(into));
        soon(disk.has_flooded.notified()).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        let mut page = soon(loan.reclaim()).await;
        let taken_back = page.intact().to_vec();
        let flood = disk.flood.lock().unwrap().take().unwrap();
        let status = soon(flood).await.unwrap();
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert!(page.intact() == taken_back, "it was written after it was reclaimed");
        // A write of the last call may have told of itself.
        disk.has_flooded.notify_one();
        disk.has_flooded.notified().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changes_in_reclaimed_memory_though_a_server_goes_on_writing() {
    give_up::<Guarded>().await;
    give_up::<Within>().await;
}

#[tokio::test]
async fn a_loan_lasts_as_long_as_a_stream_of_answers() {
    let (.., pages) = served().await;
    let (from, loan) = BulkRead::lend(Bytes::from(random(300, 4)));
    let mut bytes = pages.bytes(from).await.unwrap();
    let mut read = vec![bytes.message().await.unwrap().unwrap()];
    while let Some(byte) = bytes.message().await.unwrap() {
        read.push(byte);
    }
    assert_eq!(soon(loan.reclaim()).await, read);

    let (from, loan) = BulkRead::lend(Bytes::from(random(100_000, 4)));
    let mut bytes = pages.bytes(from).await.unwrap();
    bytes.message().await.unwrap();
    let mut reclaimed = Box::pin(loan.reclaim());
    assert!(reclaimed.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    drop(bytes);
    soon(reclaimed).await;
}

#[tokio::test]
async fn a_loan_ends_with_its_connection() {
    let disk = Arc::<Disk>::default();
    let server = Server::builder().config(over::config()).add(PagesServer::new(disk.clone()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (over::address(server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    let pages = PagesClient::new(Channel::connect(&address).await.unwrap());
    let (from, _loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
    let (into, loan) = BulkWrite::lend(vec![0; 100]);
    let call = tokio::spawn(async move { pages.hang(from, into).await });
    disk.has_kept.notified().await;
    handle.close();
    assert_eq!(soon(call).await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(soon(loan.reclaim()).await, [0; 100]);
    let (from, into) = disk.kept.lock().unwrap().take().unwrap();
    for status in [from.read(..).await.unwrap_err(), into.write(0, vec![1]).await.unwrap_err()] {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

#[tokio::test]
async fn ranges_are_checked() {
    let (.., pages) = served().await;
    let read = |ranges| pages.read(Bytes::from(vec![1; 100]).into(), ranges);
    for range in [(0, 101), (101, 101), (50, 49), (usize::MAX, usize::MAX)] {
        let status = read(vec![range]).await.unwrap_err();
        assert_eq!(
            (status.code(), status.blame()),
            (Code::OutOfRange, farcall::Blame::Application),
            "{status}"
        );
        assert!(status.message().contains("which has 100 bytes"), "{status}");
    }
    let (into, loan) = BulkWrite::lend(vec![0; 100]);
    for (at, len) in [(100, 1), (0, 101), (usize::MAX, 1)] {
        let status = pages.write(into.clone(), vec![(at, vec![1; len].into())]).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    assert_eq!(soon(loan.reclaim()).await, [0; 100]);
}

#[tokio::test]
async fn a_read_above_the_limit_says_so() {
    let (.., pages) = served().await;
    let status = pages.read(Bytes::from(vec![1; 65 * MIB]).into(), vec![(0, 65 * MIB)]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("limits.max_message"), "{status}");
}

#[tokio::test]
async fn memory_that_was_reclaimed_is_not_lent_again() {
    let (.., pages) = served().await;
    let (from, loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
    soon(loan.reclaim()).await;
    let status = pages.read(from, vec![(0, 1)]).await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::No), "{status}");
    assert!(status.message().contains("reclaimed"), "{status}");
}

#[tokio::test]
async fn loans_travel_in_arguments_only() {
    let (.., pages) = served().await;
    let status = pages.give_back(Bytes::from(vec![1; 100]).into()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains("can't be passed on"), "{status}");
    let page = Page { number: 1, image: Some(Bytes::from(vec![1; 10]).into()) };
    let status = pages.take(stream::iter([page])).await.unwrap_err();
    assert!(status.message().contains("in arguments of calls only"), "{status}");
}

#[tokio::test]
async fn the_lender_can_not_use_the_handle() {
    let (from, _loan) = BulkRead::lend(Bytes::from(vec![1; 100]));
    assert_eq!(from.read(..).await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn in_process_it_is_the_same() {
    let disk = Arc::<Disk>::default();
    let pages = PagesClient::in_process(disk.clone());
    let bytes = Bytes::from(random(MIB, 5));
    let read = pages.read(bytes.clone().into(), vec![(0, MIB)]).await.unwrap();
    assert!(read[0] == bytes);
    let (into, loan) = BulkWrite::lend(vec![0; MIB]);
    pages.write(into, vec![(0, bytes.clone())]).await.unwrap();
    assert!(soon(loan.reclaim()).await == bytes);
}

#[tokio::test]
async fn many_transfers_wait_for_each_other() {
    let (.., pages) = served().await;
    let bytes = Bytes::from(random(MIB, 6));
    let ranges: Vec<_> = (0..1000).map(|i| (i * 1000, i * 1000 + 500)).collect();
    let read = pages.read(bytes.clone().into(), ranges).await.unwrap();
    for (i, read) in read.iter().enumerate() {
        assert!(*read == bytes[i * 1000..i * 1000 + 500]);
    }
}

/// Random pieces of lent memory are written and read, by many calls at once, some of which are given up. Each byte that is lent is
/// compared, and canaries lie around it. One piece of memory in `long` is long. Returns what was moved, and the channel of all calls.
async fn transfer<M: Guard + Send>(long: u8) -> (Moved, Channel) {
    const TASKS: u64 = 8;
    /// Of each call.
    const PIECES: usize = 5;
    let transfers = if std::env::var_os("FARCALL_LONG").is_some() { 50_000 } else { 1_000 };
    let (_, channel, pages) = served().await;
    let tasks = (0..TASKS).map(|seed| {
        let pages = pages.clone();
        async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut moved = Moved::default();
            for _ in 0..transfers / TASKS / PIECES as u64 {
                let most = if random.u8(..long) == 0 { 400_000 } else { 6000 };
                let len = random.usize(1..most);
                let mut page = M::new(len);
                let mut expected = page.lent().to_vec();
                let mut pieces = Vec::new();
                // One behind the other, because those to one place take effect in any order.
                let mut at = 0;
                for _ in 0..random.usize(..=PIECES) {
                    let start = random.usize(at..=len);
                    let piece: Vec<u8> =
                        (0..random.usize(..=(len - start) / 2)).map(|_| random.u8(..)).collect();
                    at = start + piece.len();
                    expected[start..at].copy_from_slice(&piece);
                    pieces.push((start, Bytes::from(piece)));
                }
                let written: usize = pieces.iter().map(|(_, piece)| piece.len()).sum();
                let (into, loan) = BulkWrite::lend(page);
                let write = pages.write(into, pieces);
                let is_given_up = random.u8(..) < 16;
                if is_given_up {
                    let _ = tokio::time::timeout(Duration::from_micros(random.u64(..500)), write).await;
                    moved.given_up += written;
                } else {
                    soon(write).await.unwrap();
                    // They come as arguments.
                    (moved.written, moved.sent) = (moved.written + written, moved.sent + written);
                }
                let mut page = soon(loan.reclaim()).await;
                if is_given_up {
                    // Writes of the handler go on, as far as they can. One call takes longer than one that is under way.
                    let taken_back = page.intact().to_vec();
                    soon(pages.read(Bytes::from_static(b"x").into(), vec![(0, 1)])).await.unwrap();
                    assert!(page.intact() == taken_back, "{seed}: it was written after it was reclaimed");
                    continue;
                }
                assert!(page.intact() == expected, "{seed}");

                let (from, loan) = BulkRead::lend(page.freeze());
                let mut ranges = Vec::new();
                for _ in 0..random.usize(..=PIECES) {
                    let start = random.usize(..=len);
                    ranges.push((start, random.usize(start..=len)));
                }
                let read = soon(pages.read(from, ranges.clone())).await.unwrap();
                for ((start, end), read) in ranges.into_iter().zip(read) {
                    assert!(read == expected[start..end], "{seed}: {start} to {end}");
                    // They go back as the answer.
                    (moved.read, moved.received) = (moved.read + read.len(), moved.received + read.len());
                }
                drop(soon(loan.reclaim()).await);
            }
            moved
        }
    });
    (tasks.collect::<JoinSet<_>>().join_all().await.into_iter().sum(), channel)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transfers_touch_what_is_lent_and_nothing_else() {
    transfer::<Guarded>(16).await;
}

/// By RDMA, the server's device reads and writes much of this memory by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transfers_of_registered_memory_touch_what_is_lent_and_nothing_else() {
    let (moved, channel) = transfer::<Within>(3).await;
    moved::by_device_over_rdma(moved, &channel).await;
}
