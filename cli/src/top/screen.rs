//! The terminal that `top` draws on.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use terminal_size::terminal_size;

use super::table::Size;
use crate::output::{Failure, written};

/// Another screen in place of the terminal's, without a cursor and without history.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The terminal's own screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The first line.
const HOME: &str = "\x1b[H";
/// Clears a line before it is written: behind the last column of a full line it would take that column away.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears all from here.
const CLEAR_REST: &str = "\x1b[J";

/// Whether standard output is a terminal on which one can move about.
pub(super) fn is_there() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Returns the size of the terminal. Without one, nothing is too large.
pub(super) fn size() -> Size {
    let known = if io::stdout().is_terminal() { terminal_size() } else { None };
    known.map_or(Size::UNLIMITED, |(width, height)| Size { width: width.0.into(), height: height.0.into() })
}

/// A terminal's other screen, until it is dropped.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> Result<Self, Failure> {
        write(ENTER)?;
        Ok(Self(()))
    }

    /// Shows a page of lines that fit.
    pub(super) fn show(&self, page: &str, size: Size) -> Result<(), Failure> {
        write(&frame(page, size, AutoStream::choice(&io::stdout())))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that has gone.
        let _ = write(LEAVE);
    }
}

/// Returns what draws a page over the one before. Without colours the cursor moves all the same.
fn frame(page: &str, size: Size, colors: ColorChoice) -> String {
    let plain = (colors == ColorChoice::Never).then(|| strip_str(page).to_string());
    let lines: Vec<_> = plain.as_deref().unwrap_or(page).lines().take(size.height).collect();
    let mut frame = format!("{HOME}{CLEAR_LINE}{}", lines.join(&format!("\n{CLEAR_LINE}")));
    // A line break on the last line would scroll.
    if lines.len() < size.height {
        frame += &format!("\n{CLEAR_REST}");
    }
    frame
}

/// Writes it as it is: a stream that takes colours away would take the screen away, too.
fn write(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// Waits until the terminal has another size.
pub(super) struct Resizes {
    #[cfg(unix)]
    signals: Option<tokio::signal::unix::Signal>,
}

impl Resizes {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()).ok(),
        }
    }

    pub(super) async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signals) = &mut self.signals
            && signals.recv().await.is_some()
        {
            return;
        }
        // The next look sees the size.
        std::future::pending::<()>().await;
    }
}

/// Waits until the user or the system wants the program to end.
pub(super) async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // An error: it ends the program as it ends others.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_drawn_over_the_last_and_never_scrolls() {
        let size = Size { width: 10, height: 3 };
        assert_eq!(frame("a\nb\n", size, ColorChoice::Always), "\x1b[H\x1b[Ka\n\x1b[Kb\n\x1b[J");
        assert_eq!(frame("a\nb\nc\nd\n", size, ColorChoice::Always), "\x1b[H\x1b[Ka\n\x1b[Kb\n\x1b[Kc");
    }

    #[test]
    fn without_colours_the_cursor_moves_all_the_same() {
        let size = Size { width: 10, height: 3 };
        let page = "\x1b[1mbold\x1b[0m\n";
        assert_eq!(frame(page, size, ColorChoice::Never), "\x1b[H\x1b[Kbold\n\x1b[J");
        assert!(frame(page, size, ColorChoice::Always).contains("\x1b[1mbold"));
    }
}
