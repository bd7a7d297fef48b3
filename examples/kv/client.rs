//! A client of the key-value server.
//!
//! ```text
//! cargo run --release --example kv-client -- farcall://localhost:7400 put greeting hello
//! cargo run --release --example kv-client -- farcall://localhost:7400 get greeting
//! cargo run --release --example kv-client -- farcall://localhost:7400 load /usr/include
//! ```

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod load;
mod report;
mod service;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use farcall::{Bytes, Channel, Config};
use service::KvClient;

const USAGE: &str = "usage: kv-client ADDRESS COMMAND
  get KEY | put KEY VALUE | delete KEY | range FROM LIMIT | statistics
  load DIR...      store every file, read each back, compare by SHA-256, and report
or: kv-client load DIR...   the same with a server of its own, started and stopped here
with --config FILE.toml in front, for the client and a server of its own";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout();
    let (file, arguments) = match &arguments[..] {
        ["--config", file, arguments @ ..] => (Some(*file), arguments),
        arguments => (None, arguments),
    };
    let config = file.map_or_else(|| Ok(Config::default()), configured)?;
    // An operator's FARCALL_TRANSPORT overrides the file.
    let builder = Channel::builder().config(config).with_env();
    if let ["load", directories @ ..] = arguments {
        let server = OwnServer::start(file)?;
        return load(builder.connect(&server.address).await?, directories).await;
    }
    let [address, command @ ..] = arguments else { return Err(USAGE.into()) };
    let channel = builder.connect(address).await?;
    if let ["load", directories @ ..] = command {
        return load(channel, directories).await;
    }
    let kv = KvClient::new(channel);
    match command {
        ["get", key] => match kv.get(*key).await? {
            Some(value) => out.write_all(&value)?,
            None => return Err(format!("no key `{key}`").into()),
        },
        ["put", key, value] => {
            kv.put(*key, Bytes::copy_from_slice(value.as_bytes())).await?;
        }
        ["delete", key] => {
            if !kv.delete(*key).await? {
                return Err(format!("no key `{key}`").into());
            }
        }
        ["range", from, limit] => {
            for entry in kv.range(*from, limit.parse()?).await? {
                writeln!(out, "{:>12} {}", entry.bytes, entry.key)?;
            }
        }
        ["statistics"] => writeln!(out, "{:#?}", kv.statistics().await?)?,
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn configured(file: &str) -> Result<Config, Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|why| format!("{file}: {why}"))?;
    Ok(Config::from_toml(&text).map_err(|why| format!("{file}: {why}"))?)
}

async fn load(channel: Channel, directories: &[&str]) -> Result<(), Box<dyn Error>> {
    if directories.is_empty() {
        return Err(USAGE.into());
    }
    let directories: Vec<PathBuf> = directories.iter().map(PathBuf::from).collect();
    let report = load::run(channel, &directories).await?;
    write!(std::io::stdout(), "{report}")?;
    if report.mismatches > 0 {
        return Err("what came back is not what was stored".into());
    }
    Ok(())
}

/// The server program next to this one, on a port of its own choice.
struct OwnServer {
    process: Child,
    address: String,
}

impl OwnServer {
    fn start(config: Option<&str>) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?.with_file_name("kv-server");
        let mut process = Command::new(&program)
            .arg("127.0.0.1:0")
            .args(config)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            return Err("the server ended before it listened".into());
        };
        Ok(Self { address: format!("farcall://{address}"), process })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to stop.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
