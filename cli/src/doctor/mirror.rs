//! The mirror at the end of a way, which answers datagrams and tells with which mark they arrived, and the side that asks it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::timeout;

use super::datagram::Marked;

/// The head of each datagram. Zeros follow it up to the length that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The secret of those whom the mirror answers.
    pub(super) token: u64,
    /// The number of the question, which its answer repeats.
    pub(super) number: u32,
    /// The mark with which question and answer are sent.
    pub(super) mark: u8,
    /// The mark with which the question arrived. Only answers have it.
    pub(super) seen: u8,
    /// Whether the answer has nothing but the head.
    pub(super) is_brief: bool,
}

impl Head {
    pub(super) const LENGTH: usize = 16;

    pub(super) fn encode(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..15].copy_from_slice(&[self.mark, self.seen, self.is_brief.into()]);
        bytes
    }

    pub(super) fn decode(datagram: &[u8]) -> Option<Self> {
        let (token, rest) = datagram.get(..Self::LENGTH)?.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let &[mark, seen, is_brief, _] = rest else { return None };
        let (token, number) = (u64::from_le_bytes(*token), u32::from_le_bytes(*number));
        Some(Self { token, number, mark, seen, is_brief: is_brief != 0 })
    }
}

/// The most datagrams that a mirror answers: several times what one look at a way takes.
const MOST: usize = 1024;

/// Answers the datagrams that come from an address and have the token, and no others. An answer is never longer than its question,
/// so nobody gains by having a mirror answer somebody else.
pub(super) async fn answer(socket: &Marked, peer: IpAddr, token: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut answered = 0;
    while answered < MOST {
        let arrived = socket.receive(&mut buffer).await?;
        let question = Head::decode(&buffer[..arrived.length]);
        let Some(question) = question.filter(|head| head.token == token && arrived.from.ip() == peer) else {
            continue;
        };
        buffer[..Head::LENGTH].copy_from_slice(&Head { seen: arrived.mark, ..question }.encode());
        let length = if question.is_brief { Head::LENGTH } else { arrived.length };
        reply(socket, &buffer[..length], arrived.from, question.mark).await;
        answered += 1;
    }
    Ok(())
}

/// Sends an answer. One that is longer than this machine's packets is cut to its head: the question has come through.
async fn reply(socket: &Marked, answer: &[u8], to: SocketAddr, mark: u8) {
    // A failure is like a loss on the way: nothing arrives, and the other side asks again.
    if let Ok(false) = socket.send(answer, to, mark).await {
        let _ = socket.send(&answer[..Head::LENGTH], to, mark).await;
    }
}

/// How long a question waits for an answer before it is repeated. Networks lose single datagrams, which is no fault of the way.
const WAITS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// Asks a mirror.
#[derive(Debug)]
pub(super) struct Asker {
    socket: Marked,
    mirror: SocketAddr,
    token: u64,
    /// The number of the last question.
    number: u32,
}

/// How a question and its answer arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// The mark of the question when it arrived there.
    pub(super) there: u8,
    /// The mark of the answer when it arrived here.
    pub(super) here: u8,
}

impl Asker {
    /// Asks a mirror from an address of this machine.
    pub(super) async fn new(own: IpAddr, mirror: SocketAddr, token: u64) -> io::Result<Self> {
        Ok(Self { socket: Marked::bind(own, mirror).await?, mirror, token, number: 0 })
    }

    /// Sends a datagram of this length that the mirror does not answer. Returns `false` if it is longer than the network interface takes.
    pub(super) async fn fits(&self, length: usize) -> bool {
        !matches!(self.socket.send(&vec![0; length], self.mirror, 0).await, Ok(false))
    }

    /// Asks with a datagram of this length and mark. The answer has them, too, or is brief. Repeats a question that is not answered.
    /// `None`: no answer came to any of them.
    pub(super) async fn ask(&mut self, length: usize, mark: u8, is_brief: bool) -> Option<Seen> {
        self.number += 1;
        let head = Head { token: self.token, number: self.number, mark, seen: 0, is_brief };
        let mut datagram = head.encode().to_vec();
        datagram.resize(length.max(Head::LENGTH), 0);
        for wait in WAITS {
            // A datagram that was not sent has no answer either.
            let _ = self.socket.send(&datagram, self.mirror, mark).await;
            if let Ok(Ok(seen)) = timeout(wait, self.answer()).await {
                return Some(seen);
            }
        }
        None
    }

    /// Waits for the answer to the last question.
    async fn answer(&self) -> io::Result<Seen> {
        let mut buffer = [0; Head::LENGTH];
        loop {
            let arrived = self.socket.receive(&mut buffer).await?;
            let answer = Head::decode(&buffer[..arrived.length]);
            if let Some(Head { token, number, seen, .. }) = answer
                && (arrived.from, token, number) == (self.mirror, self.token, self.number)
            {
                return Ok(Seen { there: seen, here: arrived.mark });
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

    use super::*;

    /// Begins a mirror at an address of the loopback interface, which ends with the test's runtime.
    async fn asker(at: IpAddr, token: u64) -> Asker {
        let socket = Marked::bind(at, (at, 0).into()).await.unwrap();
        let mirror = SocketAddr::new(at, socket.port().unwrap());
        tokio::spawn(async move { answer(&socket, at, 7).await });
        Asker::new(at, mirror, token).await.unwrap()
    }

    #[tokio::test]
    async fn marks_are_seen_both_ways() {
        for at in ["127.0.0.1", "::1"] {
            let mut asker = asker(at.parse().unwrap(), 7).await;
            for mark in [0, 26 << 2, 26 << 2 | 0b10, 0xff] {
                assert_eq!(asker.ask(64, mark, false).await, Some(Seen { there: mark, here: mark }), "{at}");
            }
        }
    }

    #[tokio::test]
    async fn an_answer_is_as_long_as_its_question_or_brief() {
        let Asker { socket, mirror, .. } = asker([127, 0, 0, 1].into(), 7).await;
        for (is_brief, expected) in [(false, 900), (true, Head::LENGTH)] {
            let head = Head { token: 7, number: 1, mark: 0, seen: 0, is_brief };
            let mut datagram = head.encode().to_vec();
            datagram.resize(900, 0);
            assert!(socket.send(&datagram, mirror, 0).await.unwrap());
            assert_eq!(socket.receive(&mut [0; 2000]).await.unwrap().length, expected);
        }
    }

    #[tokio::test]
    async fn nobody_is_answered_without_the_token_or_from_elsewhere() {
        let at: IpAddr = [127, 0, 0, 1].into();
        let mut stranger = asker(at, 8).await;
        assert_eq!(stranger.ask(64, 0, false).await, None);
        // All of 127.0.0.0/8 is this machine.
        let mut friend = asker(at, 7).await;
        let mut elsewhere = Asker::new([127, 0, 0, 2].into(), friend.mirror, 7).await.unwrap();
        assert_eq!(elsewhere.ask(64, 0, false).await, None);
        assert!(friend.ask(64, 0, false).await.is_some());
    }

    #[tokio::test]
    async fn a_packet_longer_than_the_interface_takes_does_not_fit() {
        let asker = asker([127, 0, 0, 1].into(), 7).await;
        // The interface's MTU is 65536 bytes, and a datagram has at most 65507.
        assert!(asker.fits(65507).await && !asker.fits(65508).await);
    }

    #[test]
    fn heads_of_any_bytes_are_read_or_refused() {
        let head = Head { token: u64::MAX - 1, number: 9, mark: 0x6a, seen: 3, is_brief: true };
        assert_eq!(Head::decode(&head.encode()), Some(head));
        for length in 0..Head::LENGTH {
            assert_eq!(Head::decode(&vec![0xff; length]), None);
        }
    }
}
