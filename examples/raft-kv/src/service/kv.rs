//! The service of keys and values.

use farcall::{Bytes, Status};

use super::batches::Batches;
use super::reads::Reads;
use super::{Kv, KvError, LONGEST_KEY, LONGEST_VALUE, MOST_OPEN};
use crate::store::Reader;
use crate::types::{Answer, Command, Operation, Raft, RequestId};

/// Serves clients.
pub struct KvService {
    batches: Batches,
    reads: Reads,
    reader: Reader,
}

impl KvService {
    /// Creates the service for clients. Must be called within a tokio runtime.
    pub fn new(raft: &Raft, reader: Reader) -> Self {
        Self { batches: Batches::new(raft.clone()), reads: Reads::new(raft.clone()), reader }
    }

    async fn write(&self, request: RequestId, operation: Operation) -> Result<bool, KvError> {
        match request.number.checked_sub(request.first_open) {
            Some(older) if older < MOST_OPEN => {}
            Some(_) => {
                return Err(KvError::Invalid(format!("a session has at most {MOST_OPEN} open requests")));
            }
            None => return Err(KvError::Invalid("a request that is below the first open one".into())),
        }
        match self.batches.write(Command { request, operation }).await? {
            Answer::Done => Ok(true),
            Answer::Changed(changed) => Ok(changed),
            Answer::NoSession => Err(KvError::NoSession),
            Answer::Late => Err(KvError::Late),
        }
    }
}

impl Kv for KvService {
    async fn open(&self, session: u128) -> Result<(), KvError> {
        let request = RequestId { session, number: 0, first_open: 0 };
        self.write(request, Operation::Open).await.map(drop)
    }

    async fn get(&self, key: String) -> Result<Option<Bytes>, KvError> {
        check(&key, None)?;
        self.reads.confirmed().await?;
        let value = self.reader.get(key).await;
        value.map_err(|why| Status::internal(format!("the value can't be read: {why:#}")).into())
    }

    async fn put(&self, request: RequestId, key: String, value: Bytes) -> Result<(), KvError> {
        check(&key, Some(&value))?;
        self.write(request, Operation::Put { key, value }).await.map(drop)
    }

    async fn delete(&self, request: RequestId, key: String) -> Result<bool, KvError> {
        check(&key, None)?;
        self.write(request, Operation::Delete { key }).await
    }

    async fn compare_and_set(
        &self,
        request: RequestId,
        key: String,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Result<bool, KvError> {
        check(&key, expected.as_ref())?;
        check(&key, value.as_ref())?;
        self.write(request, Operation::CompareAndSet { key, expected, value }).await
    }
}

fn check(key: &str, value: Option<&Bytes>) -> Result<(), KvError> {
    if !(1..=LONGEST_KEY).contains(&key.len()) {
        return Err(KvError::Invalid(format!("the key has {} bytes, not 1 to {LONGEST_KEY}", key.len())));
    }
    match value {
        Some(value) if value.len() > LONGEST_VALUE => {
            Err(KvError::Invalid(format!("the value has {} bytes, more than {LONGEST_VALUE}", value.len())))
        }
        _ => Ok(()),
    }
}
