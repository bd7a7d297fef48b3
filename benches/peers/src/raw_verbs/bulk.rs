//! Long READs or WRITEs beside the messages.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use farcall_rdma::testing::device::{QueuePair, ReadTarget, RemoteRange, Work};

use super::end::shown;
use crate::Result;
use crate::args::{Args, Method};
use crate::load;

/// Farcall's piece of a long payload. How many bytes of them are under way is `rdma.bulk_window`.
const PIECE: usize = 64 << 10;

/// Payloads of the same length that move one after the other, for ever.
pub(super) struct Load {
    qp: Arc<dyn QueuePair>,
    local: Local,
    remote: RemoteRange,
    /// Bytes of a payload, and of one request.
    len: usize,
    piece: usize,
    /// Payloads that take turns, and requests that are posted at a time.
    payloads: usize,
    in_flight: usize,
    /// Requests so far.
    posted: usize,
    // Memory that is used again.
    works: VecDeque<Work>,
}

pub(super) enum Local {
    Into(Vec<Arc<ReadTarget>>),
    From(Bytes),
}

impl Load {
    pub(super) fn new(
        args: &Args,
        window: u32,
        qp: Arc<dyn QueuePair>,
        local: Local,
        remote: RemoteRange,
    ) -> Self {
        let (len, payloads) = (args.load_size, args.load);
        let (piece, in_flight) = match args.load_pieces {
            true => (PIECE, (window as usize).div_ceil(PIECE)),
            false => (len, payloads),
        };
        Self { qp, local, remote, len, piece, payloads, in_flight, posted: 0, works: VecDeque::new() }
    }

    /// Begins as many requests as there may be.
    pub(super) fn begin(&mut self) -> Result<()> {
        (0..self.in_flight).try_for_each(|_| self.post())
    }

    pub(super) fn is_of(&self, qp_num: u32) -> bool {
        self.qp.number() == qp_num
    }

    /// Notes that a request has completed, and posts the next.
    pub(super) fn moved(&mut self) -> Result<()> {
        load::moved_beside(self.piece);
        self.post()
    }

    fn post(&mut self) -> Result<()> {
        let payload = self.posted % self.payloads;
        let at = self.posted / self.payloads * self.piece % self.len;
        let len = self.piece.min(self.len - at);
        let remote = RemoteRange { addr: self.remote.addr + at as u64, ..self.remote };
        let tag = self.posted as u64;
        self.works.push_back(match &self.local {
            Local::Into(targets) => {
                let into = Arc::clone(&targets[payload]);
                Work::Read { into, at, len, from: remote, tag }
            }
            Local::From(bytes) => Work::Write { from: bytes.slice(at..at + len).into(), to: remote, tag },
        });
        self.posted += 1;
        // The queue has room: no more are posted than were before.
        match self.qp.post(&mut self.works).map_err(shown)? {
            1 => Ok(()),
            _ => Err("the load's queue is full".into()),
        }
    }
}

/// Whether the load reads: what a server does with memory that is lent to be read. Else it writes.
pub(super) fn reads(args: &Args) -> Result<bool> {
    match (args.method, args.load_method) {
        (Method::Echo, Method::Lend) => Ok(true),
        (Method::Echo, Method::Fill) => Ok(false),
        (calls, load) => {
            Err(format!("raw verbs have no {} beside a load of {}", calls.name(), load.name()).into())
        }
    }
}
