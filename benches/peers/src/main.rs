//! Farcall and those it is compared with. Each is a server and a client, which are processes of their own:
//!
//! ```text
//! peers NAME server [--listen ADDRESS]       says "listening ADDRESS", serves until its standard input ends
//! peers NAME client --connect ADDRESS ...    makes calls, then prints what they took as one line of JSON
//! peers certificates DIRECTORY               writes ca.pem, cert.pem and key.pem, for encrypted calls
//! ```
//!
//! The options are those of [`args`]; `docs/BENCHMARKS.md` says what is measured and how.

mod args;
mod farcall;
mod load;
mod process;
#[cfg(feature = "tls")]
mod raw_tls;
mod raw_tokio;
mod raw_verbs;
mod report;
#[cfg(feature = "frameworks")]
mod tarpc;
#[cfg(feature = "frameworks")]
mod tonic;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use args::{Args, Role};
use load::Caller;
use report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// A contestant: a way to call, with both its ends.
trait Contestant: 'static {
    type Client: Caller;

    /// Serves for ever; says where as soon as clients may come.
    fn serve(args: Args) -> impl Future<Output = Result<()>> + Send;

    /// One connection to a server.
    fn connect(args: Args) -> impl Future<Output = Result<Self::Client>> + Send;
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    #[cfg(feature = "tls")]
    if words.first().is_some_and(|word| word == "certificates") {
        let to = words.get(1).ok_or_else(|| "certificates DIRECTORY".into());
        return end(to.and_then(|to| raw_tls::certificates(to)));
    }
    end(Args::parse(words.into_iter()).and_then(|args| match args.contestant.as_str() {
        "farcall" => run::<farcall::Farcall>(args),
        #[cfg(feature = "tls")]
        "raw-tls" => run::<raw_tls::RawTls>(args),
        "raw-tokio" => run::<raw_tokio::RawTokio>(args),
        #[cfg(feature = "frameworks")]
        "tarpc" => run::<tarpc::Tarpc>(args),
        #[cfg(feature = "frameworks")]
        "tonic" => run::<tonic::Tonic>(args),
        "raw-verbs" => run_raw_verbs(args),
        other => Err(format!("no contestant {other}").into()),
    }))
}

fn end(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run<C: Contestant>(args: Args) -> Result<()> {
    let mut builder = match args.current_thread {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(args.workers).enable_all().build()?;
    match args.role {
        Role::Server => {
            std::thread::spawn(end_with_standard_input);
            // A task, because what runs in block_on itself is woken more slowly.
            runtime.block_on(async { tokio::spawn(C::serve(args)).await? })
        }
        Role::Client => end_with(runtime.block_on(load::run::<C>(args))?),
    }
}

/// Has no calls, so its ends are loops of their own.
fn run_raw_verbs(args: Args) -> Result<()> {
    if args.role == Role::Server {
        std::thread::spawn(end_with_standard_input);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(raw_verbs::run(args))?.map_or(Ok(()), |report| end_with(report))
}

fn end_with(report: Report) -> ! {
    println!("{report}");
    // Taking things down is not measured, and may take long.
    std::process::exit(0)
}

/// Whoever started this server holds the other end of its standard input, so no server is left behind. And no signal
/// is needed, which tools that start the server for somebody would have to pass on.
fn end_with_standard_input() {
    // Whatever ends it, an error too, is the end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// Prints where a server listens.
fn listening(address: SocketAddr) -> Result<()> {
    println!("listening {address}");
    Ok(std::io::stdout().flush()?)
}
