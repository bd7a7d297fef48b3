//! The `farcall` command: what this machine can do, and why not.

use std::io::{self, Write};
use std::process::ExitCode;

use farcall::Channel;

const USAGE: &str = "usage:
  farcall check             what RDMA would use on this machine, or why it can't
  farcall connect ADDRESS   connect to a server and say what calls would travel by, as in farcall://db1:7400
  farcall --version         the version of this command

exit status: 0 yes, 1 no, 2 wrong arguments";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["check"] => say(check()),
        ["connect", address] => say(connect(address)),
        ["help" | "--help" | "-h"] => say(Ok(USAGE.into())),
        ["version" | "--version" | "-V"] => say(Ok(concat!("farcall ", env!("CARGO_PKG_VERSION")).into())),
        wrong => {
            let what = match wrong {
                [] => "a command is missing".to_owned(),
                ["connect"] => "connect: the address is missing".to_owned(),
                ["check" | "connect", .., more] => format!("there is more than the command takes: `{more}`"),
                [unknown, ..] => format!("there is no command `{unknown}`"),
            };
            // Nothing can be done about a closed standard error.
            let _ = writeln!(io::stderr(), "farcall: {what}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn say(answer: Result<String, String>) -> ExitCode {
    let (code, printed) = match answer {
        Ok(text) => (ExitCode::SUCCESS, writeln!(io::stdout(), "{text}")),
        Err(text) => (ExitCode::FAILURE, writeln!(io::stderr(), "{text}")),
    };
    if printed.is_ok() { code } else { ExitCode::FAILURE }
}

fn check() -> Result<String, String> {
    match farcall::rdma::probe(&farcall::RdmaConfig::default(), None) {
        Ok(found) => Ok(format!(
            "RDMA works here: device {} port {}, GID {} ({}), {} bytes in a packet",
            found.device, found.port, found.gid_index, found.gid, found.mtu
        )),
        Err(why) => Err(format!("no RDMA here: {why}\n{}", why.remedy())),
    }
}

fn connect(address: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let channel = Channel::connect(address).await.map_err(|e| e.to_string())?;
        let connection = channel.connection().await.map_err(|e| e.to_string())?;
        let peer = connection.peer().map_or_else(String::new, |peer| format!("{peer}: "));
        Ok(format!("{peer}calls travel by {}", connection.transport()))
    })
}
