//! Commands, applied to the tables of a transaction. The result follows from the tables and the command alone: all nodes come to
//! the same.

use anyhow::Result;
use redb::{ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use crate::types::{Answer, Command, Operation, RequestId};

/// Values by their keys.
pub(super) const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");
/// [`Session`]s by their numbers.
pub(super) const SESSIONS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("sessions");
/// The sessions again, by when they were used.
pub(super) const USES: TableDefinition<'_, (u64, u128), ()> = TableDefinition::new("uses");
/// Answers that a client may ask for again, by session and number of the request.
pub(super) const ANSWERS: TableDefinition<'_, (u128, u64), &[u8]> = TableDefinition::new("answers");

/// How many sessions there may be. One more ends one of those that were idle for longest.
const MOST_SESSIONS: u64 = 10_000;

/// A session's last use is noted in steps of so many entries, so that not every command has to write it.
const USE_STEP: u64 = 1000;

/// The session of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Session {
    /// The index of the session's latest entry, or of one less than [`USE_STEP`] older.
    pub(super) used: u64,
    /// Requests below this number are answered, and no attempt of them counts.
    pub(super) first_open: u64,
}

type Values<'t> = Table<'t, &'static str, &'static [u8]>;

/// The tables of a transaction.
pub(super) struct Tables<'t> {
    pub(super) values: Values<'t>,
    sessions: Table<'t, u128, &'static [u8]>,
    uses: Table<'t, (u64, u128), ()>,
    answers: Table<'t, (u128, u64), &'static [u8]>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            values: transaction.open_table(VALUES)?,
            sessions: transaction.open_table(SESSIONS)?,
            uses: transaction.open_table(USES)?,
            answers: transaction.open_table(ANSWERS)?,
        })
    }

    /// Applies a command of the entry `index`, unless it was applied before. Returns its answer, the first one if there was one.
    pub(super) fn apply(&mut self, index: u64, command: &Command) -> Result<Answer> {
        let request = command.request;
        match &command.operation {
            Operation::Open => self.open_session(index, request.session),
            Operation::Put { key, value } => self.once(index, request, |values| {
                values.insert(key.as_str(), value.as_ref())?;
                Ok(Answer::Done)
            }),
            Operation::Delete { key } => self
                .once(index, request, |values| Ok(Answer::Changed(values.remove(key.as_str())?.is_some()))),
            Operation::CompareAndSet { key, expected, value } => self.once(index, request, |values| {
                let equal = match values.get(key.as_str())? {
                    Some(found) => expected.as_deref() == Some(found.value()),
                    None => expected.is_none(),
                };
                if equal {
                    match value {
                        Some(value) => drop(values.insert(key.as_str(), value.as_ref())?),
                        None => drop(values.remove(key.as_str())?),
                    }
                }
                Ok(Answer::Changed(equal))
            }),
        }
    }

    /// Makes the change of a request, unless it was made before.
    fn once(
        &mut self,
        index: u64,
        request: RequestId,
        change: impl FnOnce(&mut Values<'t>) -> Result<Answer>,
    ) -> Result<Answer> {
        let Some(mut session) = self.session(request.session)? else { return Ok(Answer::NoSession) };
        if request.number < session.first_open {
            return Ok(Answer::Late);
        }
        let place = (request.session, request.number);
        if let Some(answer) = self.answers.get(place)? {
            return Ok(postcard::from_bytes(answer.value())?);
        }
        let answer = change(&mut self.values)?;
        self.put_answer(request.session, request.number, answer)?;
        let before = session;
        if request.first_open > session.first_open {
            self.answers.retain_in(
                (request.session, session.first_open)..(request.session, request.first_open),
                |_, _| false,
            )?;
            session.first_open = request.first_open;
        }
        if index - session.used >= USE_STEP {
            self.uses.remove((session.used, request.session))?;
            self.uses.insert((index, request.session), ())?;
            session.used = index;
        }
        if session != before {
            self.put_session(request.session, session)?;
        }
        Ok(answer)
    }

    fn open_session(&mut self, index: u64, number: u128) -> Result<Answer> {
        if self.session(number)?.is_some() {
            return Ok(Answer::Done);
        }
        self.add_session(number, Session { used: index, first_open: 0 })?;
        if self.sessions.len()? > MOST_SESSIONS {
            let idle = self.uses.first()?.map(|(place, _)| place.value().1);
            if let Some(idle) = idle {
                self.end_session(idle)?;
            }
        }
        Ok(Answer::Done)
    }

    fn end_session(&mut self, number: u128) -> Result<()> {
        if let Some(session) = self.session(number)? {
            self.uses.remove((session.used, number))?;
        }
        self.sessions.remove(number)?;
        Ok(self.answers.retain_in((number, 0)..=(number, u64::MAX), |_, _| false)?)
    }

    fn session(&self, number: u128) -> Result<Option<Session>> {
        let session = self.sessions.get(number)?;
        Ok(session.map(|session| postcard::from_bytes(session.value())).transpose()?)
    }

    /// Adds a session that is not there.
    pub(super) fn add_session(&mut self, number: u128, session: Session) -> Result<()> {
        self.uses.insert((session.used, number), ())?;
        self.put_session(number, session)
    }

    fn put_session(&mut self, number: u128, session: Session) -> Result<()> {
        self.sessions.insert(number, postcard::to_allocvec(&session)?.as_slice())?;
        Ok(())
    }

    pub(super) fn put_answer(&mut self, session: u128, number: u64, answer: Answer) -> Result<()> {
        self.answers.insert((session, number), postcard::to_allocvec(&answer)?.as_slice())?;
        Ok(())
    }
}
