//! The files and programs of a machine, by which one learns what it has.

mod program;
mod recording;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

pub use recording::MalformedRecording;

/// An answer, or the error number instead of it.
type Answer = Result<String, i32>;

/// The files and programs of a machine: of this one, or of another one that was recorded.
///
/// Everything is a question with an answer in text. So a [recording](Self::recording) is the list of both, which one can read,
/// and attach to a report.
#[derive(Debug)]
pub struct Machine {
    source: Source,
    /// The questions that were asked, if they are to be recorded.
    asked: Option<Mutex<BTreeMap<String, Answer>>>,
}

#[derive(Debug)]
enum Source {
    /// The files below a directory. Only below `/` there are programs, too.
    Files(PathBuf),
    /// The answers of another time.
    Recording(BTreeMap<String, Answer>),
}

impl Default for Machine {
    fn default() -> Self {
        Self::this()
    }
}

impl Machine {
    /// Returns the machine that this process runs on.
    pub fn this() -> Self {
        Self::below("/")
    }

    /// Returns a machine whose files lie below a directory, as a container sees those of its host. It runs no programs.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { source: Source::Files(root.into()), asked: None }
    }

    /// Returns a machine that answers as another one did.
    ///
    /// # Errors
    ///
    /// The first line that is none of a [recording](Self::recording).
    pub fn recorded(recording: &str) -> Result<Self, MalformedRecording> {
        Ok(Self { source: Source::Recording(recording::parse(recording)?), asked: None })
    }

    /// Returns the machine so that it remembers all answers from now on.
    #[must_use]
    pub fn remembering(self) -> Self {
        Self { asked: Some(Mutex::default()), ..self }
    }

    /// Returns the answers that it remembers, as text. Empty unless it is [remembering](Self::remembering).
    ///
    /// They contain addresses and names of the machine, and no file's content beside what the findings are made from.
    pub fn recording(&self) -> String {
        let asked = self.asked.as_ref().map(|asked| asked.lock().unwrap_or_else(PoisonError::into_inner));
        asked.map_or_else(String::new, |asked| recording::render(&asked))
    }

    /// Whether it is this machine, on which one can act.
    pub fn is_this(&self) -> bool {
        matches!(&self.source, Source::Files(root) if root == Path::new("/"))
    }

    /// Returns a file's content without white space around it. `None` if it can't be read, or is empty.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        self.try_read(path).ok().filter(|text| !text.is_empty())
    }

    /// Returns a file's content without white space around it, or the error number.
    pub(crate) fn try_read(&self, path: &str) -> Answer {
        self.ask(path.to_owned(), |root| {
            let bytes = fs::read(below(root, path))?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        })
    }

    /// Returns a file's number, if it contains one.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Returns the names in a directory, in order. None if it can't be read.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let question = format!("{directory}/");
        if let Source::Recording(answers) = &self.source
            && !answers.contains_key(&question)
        {
            return recording::implied_names(answers, &question);
        }
        let names = self.ask(question, |root| {
            let names = fs::read_dir(below(root, directory))?.filter_map(Result::ok);
            let mut names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort_unstable();
            Ok(names.join("\n"))
        });
        names.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Returns the last name of the path that a symbolic link leads to.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = self.ask(format!("{path} ->"), |root| {
            Ok(fs::read_link(below(root, path))?.to_string_lossy().into_owned())
        });
        Some(target.ok()?.rsplit('/').next()?.to_owned())
    }

    /// Opens a device's node for reading and writing, and closes it, or returns the error number.
    pub(crate) fn open(&self, node: &str) -> Result<(), i32> {
        let answer = self.ask(format!("open {node}"), |root| {
            fs::File::options().read(true).write(true).open(below(root, node))?;
            Ok(String::new())
        });
        answer.map(drop)
    }

    /// Returns the mode and owner of a device's node.
    pub(crate) fn node(&self, node: &str) -> Option<Node> {
        self.ask(format!("owner {node}"), |root| Node::of(&below(root, node))).ok().map(Node)
    }

    /// Returns what a program prints to standard output, or why there is no output.
    pub(crate) fn run(&self, program: &[&str]) -> Result<String, NoOutput> {
        let question = format!("$ {}", program.join(" "));
        if let Source::Recording(answers) = &self.source
            && !answers.contains_key(&question)
        {
            return Err(NoOutput::NotRecorded);
        }
        let answer = self.ask(question, |root| {
            if root == Path::new("/") {
                program::run(program, program::LIMIT)
            } else {
                Err(io::Error::from_raw_os_error(NOT_RUN))
            }
        });
        answer.map_err(NoOutput::of)
    }

    /// Returns a variable of this process's environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let answer = self.ask(format!("${name}"), |root| {
            let value = if root == Path::new("/") { std::env::var(name).ok() } else { None };
            value.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
        });
        answer.ok()
    }

    /// Returns the addresses of the machine's network interfaces, a line `NAME ADDRESS/PREFIX` for each.
    pub(crate) fn interfaces(&self, of_this: impl FnOnce() -> String) -> String {
        let answer = self.ask("interfaces".to_owned(), |root| {
            if root == Path::new("/") {
                Ok(of_this())
            } else {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
        });
        answer.unwrap_or_default()
    }

    fn ask(&self, question: String, answer: impl FnOnce(&Path) -> io::Result<String>) -> Answer {
        let answer = match &self.source {
            Source::Files(root) => answer(root).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)),
            Source::Recording(answers) => answers.get(&question).cloned().unwrap_or(Err(libc::ENOENT)),
        };
        if let Some(asked) = &self.asked {
            asked.lock().unwrap_or_else(PoisonError::into_inner).insert(question, answer.clone());
        }
        answer
    }
}

/// The reason why a program has printed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoOutput {
    /// There is no such program.
    NotInstalled,
    /// The kernel refuses its answer to this user.
    Refused,
    /// The program has worked. The device that it was asked about has nothing of the kind.
    Unsupported,
    /// It has failed for another reason.
    Failed,
    /// It has not ended in time.
    TimedOut,
    /// The machine is a directory of files.
    NotRun,
    /// The machine is a record, which has no answer to this.
    NotRecorded,
}

/// The error number that a record has where no program was run.
const NOT_RUN: i32 = libc::ENODATA;

impl NoOutput {
    fn of(errno: i32) -> Self {
        match errno {
            libc::ENOENT => Self::NotInstalled,
            libc::EPERM | libc::EACCES => Self::Refused,
            libc::EOPNOTSUPP => Self::Unsupported,
            libc::ETIMEDOUT => Self::TimedOut,
            NOT_RUN => Self::NotRun,
            _ => Self::Failed,
        }
    }
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The mode and owner of a device's node: `MODE UID GID`, the mode in octal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node(String);

impl Node {
    fn of(path: &Path) -> io::Result<String> {
        let metadata = fs::metadata(path)?;
        Ok(format!("{:o} {} {}", metadata.mode() & 0o7777, metadata.uid(), metadata.gid()))
    }

    /// Returns the mode in octal digits.
    pub(crate) fn mode(&self) -> &str {
        self.word(0)
    }

    /// Returns the number of the group.
    pub(crate) fn group(&self) -> &str {
        self.word(2)
    }

    fn word(&self, index: usize) -> &str {
        self.0.split(' ').nth(index).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
