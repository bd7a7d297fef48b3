//! `farcall explain`: the meaning of a code, its cause, and what to do.

use std::fmt::Write;

use clap::Args;
use farcall::explain::{Explanation, explanations};

use crate::doctor::kinds;
use crate::output::{self, BOLD, FAINT, Failure};

/// Explain a code of a message or log: cause, blame and remedy.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall explain                  list all codes
  farcall explain RETRY_EXC_ERR    a status of a completion
  farcall explain unavailable      a status of a call
  farcall explain no-device        a reason against RDMA, and a finding of `farcall doctor`
  farcall explain path-mtu         a finding of `farcall doctor HOST`
  farcall explain out_of_sequence  a counter that `farcall doctor` names
  farcall explain ENOMEM           an error of verbs, which means something else for each verb
  farcall explain 12               all codes with this number

Exit status: 0 explained, 1 there is no such code, 64 wrong arguments")]
pub(crate) struct Arguments {
    /// The code's name or number
    code: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let all = [explanations(), kinds::explanations()].concat();
    let Some(code) = &arguments.code else {
        output::print(&list(&all))?;
        return Ok(0);
    };
    let found: Vec<_> = all.iter().filter(|explanation| is(explanation, code)).collect();
    if found.is_empty() {
        let similar: Vec<_> = all
            .iter()
            .filter(|known| is_similar(&known.name, code))
            .map(|known| known.name.as_str())
            .collect();
        let hint = match similar.is_empty() {
            true => "`farcall explain` lists all".to_owned(),
            false => format!("similar ones are {}", similar.join(", ")),
        };
        return Err(Failure::no(format!("there is no code `{code}`; {hint}")));
    }
    output::print(&found.into_iter().map(text).collect::<Vec<_>>().join("\n"))?;
    Ok(0)
}

/// Whether an explanation is of this code: its name in any spelling, the first word of it, or its number.
fn is(explanation: &Explanation, code: &str) -> bool {
    let (name, code) = (plain(&explanation.name), plain(code));
    let first = name.split(' ').next().unwrap_or_default();
    let code = code.strip_prefix("ibv_wc_").unwrap_or(&code);
    name == code
        || first == code
        || is_of_priority(&explanation.name, code)
        || explanation.number.is_some_and(|number| number.to_string() == code)
}

/// Whether a code is a name in which `[0-7]` stands for the number of a priority, as in `rx_prio[0-7]_pause`.
fn is_of_priority(name: &str, code: &str) -> bool {
    let number =
        name.split_once("[0-7]").and_then(|(before, after)| code.strip_prefix(before)?.strip_suffix(after));
    number.is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'7']))
}

fn is_similar(name: &str, code: &str) -> bool {
    let (name, code) = (plain(name), plain(code));
    code.split(['_', ' '])
        .any(|word| word.len() > 2 && name.split(['_', ' ']).any(|other| other.starts_with(word)))
}

/// Returns the name without what people write differently.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace('-', "_")
}

fn text(explanation: &Explanation) -> String {
    let Explanation { group, name, number, cause, blame, remedy, .. } = explanation;
    let number = number.map(|number| format!(" {number}")).unwrap_or_default();
    let blame = blame.map_or_else(|| "it depends: the message says so".to_owned(), |blame| blame.to_string());
    format!(
        "{BOLD}{name}{BOLD:#}  {FAINT}{group}{number}{FAINT:#}\n  cause   {cause}\n  blame   {blame}\n  remedy  {remedy}\n"
    )
}

fn list(all: &[Explanation]) -> String {
    let mut text = String::new();
    let mut group = "";
    for explanation in all {
        if explanation.group != group {
            group = explanation.group;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}{BOLD}{group}{BOLD:#}", if text.is_empty() { "" } else { "\n" });
        }
        let number = explanation.number.map(|number| number.to_string()).unwrap_or_default();
        let _ = writeln!(text, "  {number:>3}  {}", explanation.name);
    }
    text
}
