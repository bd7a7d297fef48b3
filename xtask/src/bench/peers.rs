//! The programs of `benches/peers`: building them, starting a server, making a client call it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use crate::failure::{Context, Failure, Result};
use crate::host::{self, Killed};

/// Whether tonic and tarpc are built, which takes most of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frameworks {
    With,
    Without,
    /// Without, for programs whose instructions are counted. The tools slow them down so much that the clock would end each turn
    /// of a connection, so these heed no clock.
    Counted,
    /// Like those, built without TLS.
    CountedWithoutTls,
}

/// The built program.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    program: PathBuf,
}

/// A server that runs. It ends with this value.
#[derive(Debug)]
pub(super) struct Server {
    address: String,
    process: Killed,
    /// The server ends itself when this is closed, and with it the tool that watches it.
    stdin: Option<ChildStdin>,
}

/// Whose client or server runs, under what, and with which options.
#[derive(Clone, Debug, Default)]
pub(super) struct Run<'a> {
    pub(super) contestant: &'a str,
    /// The command that runs it, as in `taskset -c 0`.
    pub(super) under: &'a [String],
    /// For both ends.
    pub(super) options: &'a [String],
}

impl Peers {
    pub(super) fn build(frameworks: Frameworks) -> Result<Self> {
        // Apart for each set of features, or they would be built anew in turns.
        let tls = ["--no-default-features", "--features", "tls"];
        let (name, features) = match frameworks {
            Frameworks::With => ("peers", &[][..]),
            Frameworks::Without => ("peers-alone", &tls[..]),
            Frameworks::Counted => ("peers-counted", &tls[..]),
            Frameworks::CountedWithoutTls => ("peers-without-tls", &tls[..1]),
        };
        let target = host::target_dir()?.join(name);
        let mut build = host::cargo();
        build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target).args(features);
        build.current_dir(host::workspace_dir().join("benches/peers"));
        if matches!(frameworks, Frameworks::Counted | Frameworks::CountedWithoutTls) {
            build.env("RUSTFLAGS", "--cfg farcall_counted");
        }
        let status = build.status().context("cargo build")?;
        host::check_signals()?;
        if !status.success() {
            return Err(Failure::failed(
                "benches/peers does not build; if its Cargo.lock is out of date, `cargo metadata` in that directory renews it",
            ));
        }
        Ok(Self { program: target.join("release/peers") })
    }

    /// One that was built elsewhere.
    pub(super) fn built(program: &Path) -> Self {
        Self { program: program.to_path_buf() }
    }

    pub(super) fn program(&self) -> &PathBuf {
        &self.program
    }

    fn command(&self, run: &Run<'_>, role: &str) -> Command {
        let mut words = run.under.iter().map(OsString::from).chain([self.program.clone().into_os_string()]);
        // The chain ends with the program, so there is a first.
        let mut command = host::system(&words.next().unwrap_or_default().to_string_lossy());
        command.args(words).args([run.contestant, role]).args(run.options);
        command
    }

    /// Starts a server and waits until it listens.
    pub(super) fn server(&self, run: &Run<'_>) -> Result<Server> {
        let mut command = self.command(run, "server");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Killed(command.spawn().context(format!("{command:?}"))?);
        let stdin = process.0.stdin.take();
        let mut said = String::new();
        if let Some(stdout) = process.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut said).context(run.contestant)?;
        }
        host::check_signals()?;
        let address = said.trim_end().strip_prefix("listening ");
        let address =
            address.ok_or_else(|| Failure::failed(format!("{command:?} does not listen: {said:?}")))?;
        Ok(Server { address: address.to_owned(), process, stdin })
    }

    /// Writes certificates for encrypted calls. Returns the options of both ends that name them.
    pub(super) fn certificates(&self) -> Result<Vec<String>> {
        let directory = host::target_dir()?.join("bench/tls");
        let mut command = host::system(&self.program.to_string_lossy());
        command.arg("certificates").arg(&directory);
        host::output(&mut command)?;
        let file = |name: &str| format!("tls.{name}={}", directory.join(format!("{name}.pem")).display());
        Ok(["ca", "cert", "key"].into_iter().flat_map(|name| ["--set".to_owned(), file(name)]).collect())
    }

    /// Runs a client to its end; what it reports.
    pub(super) fn client(&self, run: &Run<'_>, server: &Server, options: &[String]) -> Result<String> {
        let mut command = self.command(run, "client");
        command.args(["--connect", &server.address]).args(options);
        host::output(&mut command)
    }
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Lets it end by itself, so that who watches it has its say.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.stdin.take());
        let status = self.process.0.wait().context("the server")?;
        if status.success() { Ok(()) } else { Err(Failure::failed(format!("the server: {status}"))) }
    }
}
