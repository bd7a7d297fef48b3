//! A server of the pages of a file, and a cache of pages on the client.
//!
//! The client lends memory to each call, and the server moves pages between that memory and its file. Pages that are fetched come
//! into the frames of the cache, which are lent for that.
//!
//! ```text
//! cargo run --release --example pages                                     # a server of its own, and a check
//! cargo run --release --example pages -- --page 65536 --pages 4096        # longer pages
//! cargo run --release --example pages -- serve 127.0.0.1:7400 --file data # a server
//! cargo run --release --example pages -- rdma://127.0.0.1:7400            # the check against that server
//! ```
//!
//! The check overwrites pages.

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod cache;
mod check;
mod service;
mod store;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use check::Report;
use farcall::{Channel, Server};
use service::PagesServer;
use store::Store;

const USAGE: &str = "usage: pages [ADDRESS | serve HOST:PORT] [OPTIONS]
  --frames COUNT   frames of the caches (256)
for a server, or where there is no address:
  --file PATH      the file, which is made if there is none; else a temporary one
  --page BYTES     the length of a page: 4096 or 65536 (4096)
  --pages COUNT    how many pages a new file has (1024)";

type Failure = Box<dyn Error + Send + Sync>;

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

struct Options {
    frames: usize,
    file: Option<PathBuf>,
    page_bytes: usize,
    pages: usize,
}

async fn run() -> Result<(), Failure> {
    let mut options = Options { frames: 256, file: None, page_bytes: 4096, pages: 1024 };
    let mut names = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--frames" => options.frames = value()?.parse()?,
            "--file" => options.file = Some(value()?.into()),
            "--page" => options.page_bytes = value()?.parse()?,
            "--pages" => options.pages = value()?.parse()?,
            option if option.starts_with('-') => return Err(USAGE.into()),
            _ => names.push(argument),
        }
    }
    if !matches!(options.page_bytes, 4096 | 65536) || options.pages == 0 {
        return Err(USAGE.into());
    }
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check_own(options).await,
        ["serve", address] => serve(address, options).await,
        [address] => report(address, options.frames).await.map(drop),
        _ => Err(USAGE.into()),
    }
}

async fn serve(address: &str, options: Options) -> Result<(), Failure> {
    let (store, _) = open(options).await?;
    let server = Server::builder().add(PagesServer::new(store)).with_env().bind(address).await?;
    writeln!(std::io::stdout(), "listening on {}", server.local_addr())?;
    server.serve_until(tokio::signal::ctrl_c()).await;
    Ok(())
}

/// Checks a server in this process, and its file.
async fn check_own(options: Options) -> Result<(), Failure> {
    let (frames, page_bytes) = (options.frames, options.page_bytes);
    let (store, mut file) = open(options).await?;
    let server = Server::builder().add(PagesServer::new(store)).with_env().bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let model = report(&address, frames).await?;

    let stored = tokio::task::spawn_blocking(move || {
        let mut page = vec![0; page_bytes];
        let read = |_: &u32| file.read_exact(&mut page).map(|()| crc32fast::hash(&page));
        let stored: Result<Vec<_>, _> = model.iter().map(read).collect();
        check::compare(&stored?, &model)
    });
    stored.await??;
    writeln!(std::io::stdout(), "the file has every page as it was written")?;
    Ok(())
}

/// Checks a server, and prints the result. Returns the checksums of its pages.
async fn report(address: &str, frames: usize) -> Result<Vec<u32>, Failure> {
    let channel = Channel::builder().with_env().connect(address).await?;
    let transport = channel.transport().await?.name;
    let Report { shape, frames, counts, took, model } = check::run(&channel, frames).await?;
    let used = counts.hits + counts.misses;
    let mut out = std::io::stdout();
    writeln!(out, "{} pages of {} bytes, {frames} frames, by {transport}", shape.pages, shape.page_bytes)?;
    writeln!(
        out,
        "{used} pages used, {:.0} pages/s, hit rate {:.1} %",
        used as f64 / took.as_secs_f64(),
        100.0 * counts.hits as f64 / used.max(1) as f64
    )?;
    writeln!(out, "{} fetched, {} written back, all as written", counts.misses, counts.written_back)?;
    Ok(model)
}

/// Opens the file, or makes one with random pages. Returns a second handle to it, which is at its beginning.
async fn open(options: Options) -> Result<(Store, File), Failure> {
    let opened = tokio::task::spawn_blocking(move || {
        let Options { file, page_bytes, pages, .. } = options;
        let is_temporary = file.is_none();
        let temporary = || std::env::temp_dir().join(format!("farcall-pages-{}", std::process::id()));
        let path = file.unwrap_or_else(temporary);
        let is_new = !path.exists();
        let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
        if is_new {
            let mut random = fastrand::Rng::with_seed(1);
            let mut file = BufWriter::new(File::create_new(&path).map_err(wrong)?);
            let mut page = vec![0; page_bytes];
            for _ in 0..pages {
                random.fill(&mut page);
                file.write_all(&page).map_err(wrong)?;
            }
            file.flush().map_err(wrong)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(wrong)?;
        let other = File::open(&path).map_err(wrong)?;
        if is_temporary {
            // The handles keep it, and nothing is left behind.
            std::fs::remove_file(&path).map_err(wrong)?;
        }
        Ok::<_, String>((Store::open(file, page_bytes).map_err(wrong)?, other))
    });
    Ok(opened.await??)
}
