//! Loans of regions of the lender's own.

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::loan::{Lent, Loan};
use crate::access::{LentMemory, LocalRange, Memory, check_range};
use crate::proto::wire::{Granted, Outcome};
use crate::status::Status;
use crate::transport::{DirectMemory, Link};

/// A range of a region, which a server may read, or may write.
#[derive(Debug)]
pub(super) struct LentRegion {
    lent: Arc<Lent<()>>,
    range: LocalRange,
    write: bool,
}

impl LentRegion {
    /// Returns the memory, and the loan of it.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region was revoked.
    pub(super) fn new(range: LocalRange, write: bool) -> Result<(Arc<Self>, Loan<()>), Status> {
        range.check()?;
        let (lent, loan) = Loan::new((), range.len(), 1, Vec::new(), |()| ());
        Ok((Arc::new(Self { lent, range, write }), loan))
    }
}

impl Memory for LentRegion {
    fn read(&self, offset: usize, len: usize) -> Result<Vec<Bytes>, Outcome> {
        if self.write {
            return Err(Outcome::Forbidden);
        }
        check_range(offset, len, self.range.len())?;
        Ok(vec![self.range.copy(offset, len)?.into()])
    }

    fn write(&self, offset: usize, bytes: Bytes) -> Result<(), Outcome> {
        if !self.write {
            return Err(Outcome::Forbidden);
        }
        check_range(offset, bytes.len(), self.range.len())?;
        self.range.fill(offset, &bytes)
    }
}

impl LentMemory for LentRegion {
    fn number(&self) -> u64 {
        self.lent.number()
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn begin(&self) -> bool {
        self.lent.begin()
    }

    fn end(&self) {
        self.lent.end();
    }

    fn right(&self) -> u8 {
        if self.write { Granted::WRITE } else { Granted::READ }
    }

    fn pieces(&self) -> usize {
        1
    }

    fn shared(&self, link: &Arc<dyn Link>, runtime: &Handle) -> Vec<DirectMemory> {
        let memory = self.range.registered_already(link, runtime);
        let lent = |memory| DirectMemory::Registered { memory, range: self.range.range(), write: self.write };
        memory.map(lent).into_iter().collect()
    }
}
