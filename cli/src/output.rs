//! Output of the command, and its exit status.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use farcall::rdma::probe::Severity;
use farcall::{Code, Status};

use crate::USAGE;

/// Why the command could not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// One or two sentences: the cause, and what to do.
    text: String,
    /// The remedy, where the text has none.
    fix: Option<&'static str>,
    code: u8,
}

impl Failure {
    /// The answer is no.
    pub(crate) fn no(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), fix: None, code: 1 }
    }

    /// The arguments, or the files that they name, can't be used.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), fix: None, code: USAGE }
    }

    /// Returns the failure of a call. Where the server lacks the service, it names the function of its builder that adds it.
    pub(crate) fn of_call(status: &Status, builder: &str) -> Self {
        match status.code() {
            Code::Unimplemented => {
                Self::no(format!("the server does not offer that: it needs `Server::builder().{builder}`"))
            }
            _ => Self::no(status),
        }
    }

    /// Returns the failure with its remedy.
    pub(crate) fn with_fix(self, fix: Option<&'static str>) -> Self {
        Self { fix, ..self }
    }

    /// Returns the remedy.
    pub(crate) fn fix(&self) -> Option<&'static str> {
        self.fix
    }

    /// Returns the failure so that a reader who has gone does not change the exit status of the command.
    pub(crate) fn keeping(self, code: u8) -> Self {
        if self.text.is_empty() { Self { code, ..self } } else { self }
    }

    /// Returns the cause, without the [fix](Self::with_fix).
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Says why, and returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        if self.text.is_empty() {
            return ExitCode::from(self.code);
        }
        // Nothing can be done about a closed standard error.
        let fix = self.fix.map_or_else(String::new, |fix| format!(". {BOLD}Fix:{BOLD:#} {fix}"));
        let _ = writeln!(anstream::stderr(), "{BAD}farcall:{BAD:#} {}{fix}", foreign(&self.text));
        ExitCode::from(self.code)
    }
}

/// Prints to standard output.
///
/// # Errors
///
/// The output can't be written. A reader that has gone, as `head` does, has seen enough: that ends the command without a word.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = anstream::stdout().lock();
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// Returns the failure of an attempt to write to standard output.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { text: String::new(), fix: None, code: 0 },
        _ => Failure::no(format!("standard output can't be written: {error}")),
    })
}

/// Prints what another program has answered: as it is for programs, and [harmless](foreign) on a terminal.
pub(crate) fn print_answer(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    if output.is_terminal() {
        return print(&foreign(text));
    }
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// Returns another program's text without control characters, which would move a terminal's cursor or do worse.
pub(crate) fn foreign(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// For names and headings.
pub(crate) const BOLD: Style = Style::new().bold();

/// For what is less important.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// For what works.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();

/// For what does not.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Returns the style of a severity's name.
pub(crate) fn style(severity: Severity) -> Style {
    match severity {
        Severity::Fault => BAD,
        Severity::Warning => AnsiColor::Yellow.on_default().bold(),
        _ => AnsiColor::Cyan.on_default(),
    }
}
