//! Every file of some directories into the store, and back.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farcall::{Bytes, Channel};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::report::Report;
use crate::service::{KvClient, cpu_us};

/// How many calls are in flight.
const TASKS: usize = 8;

/// Longer files are left out.
const LONGEST: u64 = 48 << 20;

struct File {
    path: PathBuf,
    hash: Mutex<Option<(u64, [u8; 32])>>,
}

/// Stores every file, reads each back and compares.
pub async fn run(channel: Channel, directories: &[PathBuf]) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::default();
    let mut paths = Vec::new();
    for directory in directories {
        collect(directory, &mut paths, &mut report.skipped)?;
    }
    if paths.is_empty() {
        return Err("there is no file in these directories".into());
    }
    let files: Arc<[File]> = paths.into_iter().map(|path| File { path, hash: Mutex::default() }).collect();

    let kv = KvClient::new(&channel);
    let connection = channel.connection().await?;
    let transport = connection.transport();
    report.transport = transport.to_string();
    report.encryption = match connection.identity() {
        Some(server) if connection.is_encrypted() => format!("yes, to {}", server.name()),
        Some(server) => format!("of TCP only, to {}", server.name()),
        None => "none".to_owned(),
    };
    let device = transport.device.split(' ').next().unwrap_or("").to_owned();

    let (server_before, packets_before) = (kv.statistics().await?.cpu_us, packets(&device));
    let client_before = cpu_us();
    let mut times = all(&files, &kv, "stored", store).await?;
    times.extend(all(&files, &kv, "compared", compare).await?);
    report.client_cpu_us = cpu_us() - client_before;
    let statistics = kv.statistics().await?;
    report.server_cpu_us = statistics.cpu_us - server_before;
    if let (Some(before), Some(after)) = (packets_before, packets(&device)) {
        report.device_packets = Some((after.0 - before.0, after.1 - before.1));
    }

    for time in &times {
        report.bytes += time.bytes;
        report.mismatches += u64::from(!time.matches);
    }
    report.files = times.iter().filter(|t| t.bytes > 0 || t.matches).count() as u64 / 2;
    report.calls = times.len() as u64;
    times.sort_by_key(|t| t.took);
    report.p50 = times[times.len() / 2].took;
    report.p99 = times[times.len() * 99 / 100].took;
    let traffic = connection.traffic();
    report.qp_bytes = traffic.upgraded.bytes_sent + traffic.upgraded.bytes_received;
    report.tcp_bytes = traffic.stream.bytes_sent + traffic.stream.bytes_received;
    Ok(report)
}

/// How long a call took, what it carried, and whether that was right.
struct Time {
    took: Duration,
    bytes: u64,
    matches: bool,
}

type Outcome = Result<Time, Box<dyn Error + Send + Sync>>;

/// Does something with each file, several at a time.
async fn all<F>(
    files: &Arc<[File]>,
    kv: &KvClient,
    done: &'static str,
    each: fn(Arc<[File]>, usize, KvClient) -> F,
) -> Result<Vec<Time>, Box<dyn Error>>
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let tasks = (0..TASKS).map(|_| {
        let (files, kv, next) = (files.clone(), kv.clone(), next.clone());
        tokio::spawn(async move {
            let mut times = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= files.len() {
                    return Ok::<_, Box<dyn Error + Send + Sync>>(times);
                }
                if i % 1000 == 0 && i > 0 {
                    writeln!(std::io::stdout(), "  {i} of {} files {done}", files.len())?;
                }
                times.push(each(files.clone(), i, kv.clone()).await?);
            }
        })
    });
    let mut times = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        times.extend(task.await?.map_err(|e| e.to_string())?);
    }
    Ok(times)
}

fn key(file: &File) -> String {
    file.path.to_string_lossy().into_owned()
}

async fn store(files: Arc<[File]>, i: usize, kv: KvClient) -> Outcome {
    let file = &files[i];
    let content = read(&file.path).await?;
    let bytes = content.len() as u64;
    let hash: [u8; 32] = Sha256::digest(&content).into();
    *file.hash.lock().unwrap_or_else(PoisonError::into_inner) = Some((bytes, hash));
    let began = Instant::now();
    kv.put(key(file), content).await?;
    Ok(Time { took: began.elapsed(), bytes, matches: true })
}

async fn compare(files: Arc<[File]>, i: usize, kv: KvClient) -> Outcome {
    let file = &files[i];
    let stored = *file.hash.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let value = kv.get(key(file)).await?;
    let took = began.elapsed();
    let got = value.map(|v| (v.len() as u64, Sha256::digest(&v).into()));
    Ok(Time { took, bytes: got.map_or(0, |(bytes, _)| bytes), matches: got == stored })
}

/// A file's content, in memory from which a long value is sent without a copy.
async fn read(path: &Path) -> std::io::Result<Bytes> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut content = farcall::buf(file.metadata().await?.len() as usize);
    while !content.spare().is_empty() {
        match file.read(content.spare()).await? {
            0 => break,
            count => content.advance(count),
        }
    }
    Ok(content.freeze())
}

/// The readable regular files below a directory, by name, so that every run has the same order.
fn collect(directory: &Path, files: &mut Vec<PathBuf>, skipped: &mut u64) -> Result<(), Box<dyn Error>> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        // Build output is not data.
        if kind.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            collect(&path, files, skipped)?;
        } else if kind.is_file() {
            let fits = entry.metadata()?.len() <= LONGEST && std::fs::File::open(&path).is_ok();
            if fits { files.push(path) } else { *skipped += 1 }
        }
    }
    Ok(())
}

/// Packets that a device has sent and received: Soft-RoCE's own counters, else the InfiniBand standard's.
fn packets(device: &str) -> Option<(u64, u64)> {
    if device.is_empty() {
        return None;
    }
    let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
    let read = |name: &str| std::fs::read_to_string(port.join(name)).ok()?.trim().parse().ok();
    let pair = |a: &str, b: &str| Some((read(a)?, read(b)?));
    pair("hw_counters/sent_pkts", "hw_counters/rcvd_pkts")
        .or_else(|| pair("counters/port_xmit_packets", "counters/port_rcv_packets"))
}
