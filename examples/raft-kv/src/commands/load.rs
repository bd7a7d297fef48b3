//! `raft-kv load`: puts for a while, and what they took.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use farcall::{Bytes, Config};
use tokio::time::Instant;

use super::To;

#[derive(Debug, clap::Args)]
pub(super) struct Load {
    #[command(flatten)]
    to: To,
    /// How long, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many puts are in progress at a time.
    #[arg(long, default_value_t = 16)]
    tasks: usize,
    /// The length of values, in bytes.
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// Read values instead.
    #[arg(long)]
    reads: bool,
}

/// How many keys there are.
const KEYS: u64 = 1000;

impl Load {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let client = self.to.client(config)?;
        // The first call finds the leader and opens the session, which is not what is measured.
        client.put("load-0", Bytes::from(vec![0; self.bytes])).await?;
        let begin = Instant::now();
        let end = begin + Duration::from_secs(self.seconds);
        let tasks: Vec<_> = (0..self.tasks)
            .map(|_| {
                let (client, value, reads) = (client.clone(), Bytes::from(vec![7; self.bytes]), self.reads);
                tokio::spawn(async move {
                    let mut calls = Vec::new();
                    while Instant::now() < end {
                        let (key, began) = (format!("load-{}", fastrand::u64(..KEYS)), Instant::now());
                        if reads {
                            client.get(&key).await?;
                        } else {
                            client.put(&key, value.clone()).await?;
                        }
                        calls.push((began, Instant::now()));
                    }
                    anyhow::Ok(calls)
                })
            })
            .collect();
        let mut calls = Vec::new();
        for task in tasks {
            calls.extend(task.await??);
        }
        report(&mut calls, begin)
    }
}

fn report(calls: &mut [(Instant, Instant)], begin: Instant) -> Result<()> {
    if calls.is_empty() {
        bail!("no call has ended");
    }
    let mut times: Vec<_> = calls.iter().map(|(began, ended)| *ended - *began).collect();
    times.sort_unstable();
    calls.sort_unstable_by_key(|(_, ended)| *ended);
    let gaps = calls.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let seconds = calls.last().context("there is a call")?.1.duration_since(begin).as_secs_f64();
    println!("calls: {}", calls.len());
    println!("calls per second: {:.0}", calls.len() as f64 / seconds);
    println!("p50: {:.1?}", times[times.len() / 2]);
    println!("p99: {:.1?}", times[times.len() * 99 / 100]);
    println!("longest: {:.1?}", times[times.len() - 1]);
    println!("longest time without an answer: {:.1?}", gaps.max().unwrap_or_default());
    Ok(())
}
