//! `farcall completions` and `farcall manual`: what shells and `man` want of a command.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::{self, Failure};

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall completions bash > /etc/bash_completion.d/farcall
  farcall completions zsh > ~/.zfunc/_farcall")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write manual pages into a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  farcall manual /usr/local/share/man/man1")]
pub(crate) struct Manual {
    /// The directory, which must exist
    directory: PathBuf,
}

pub(crate) fn completions(arguments: &Completions) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "farcall", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

pub(crate) fn manual(arguments: &Manual) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    clap_mangen::generate_to(crate::Arguments::command(), directory)
        .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
    Ok(0)
}
