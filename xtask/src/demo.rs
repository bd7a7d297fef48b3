//! The main job on real data: files into a key-value service and back, over TCP, then over RDMA.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::{Context, Failure, Result};
use crate::host;
use crate::packages;
use crate::vm::{self, Stream, Vm};

/// The report of a run of the client, by name. The names are `examples/kv/report.rs`'s.
type Report = BTreeMap<String, String>;

/// The rows of the table, in order.
const ROWS: &[&str] = &[
    "transport",
    "files",
    "files left out",
    "calls",
    "payload bytes",
    "mismatches",
    "p50",
    "p99",
    "client CPU per call",
    "server CPU per call",
    "device packets",
    "bytes over the queue pair",
    "bytes over TCP",
    "payload share of TCP",
];

/// The RDMA half moves every file through an emulated machine.
const PATIENCE: Duration = Duration::from_secs(1500);

/// The share of the RDMA run's bytes that TCP may carry: the set-up, and no more.
const TCP_SHARE_PERCENT: f64 = 1.0;

pub(crate) fn command(mut args: impl Iterator<Item = String>) -> Result<u8> {
    if let Some(extra) = args.next() {
        return Err(Failure::usage(format!("demo takes no arguments, not `{extra}`")));
    }
    let client = build()?;
    let data = data();
    let shown: Vec<_> = data.iter().map(|d| d.display().to_string()).collect();
    println!("data: every file of {}\n", shown.join(" and "));

    println!("over TCP");
    let tcp = run_here(&client, "tcp", &data)?;
    let rdma = over_rdma(&client, &data);
    let rdma = match rdma {
        Ok(report) => report,
        Err(failure) => {
            print_table(&tcp, None);
            println!("RDMA half not run");
            return Err(failure);
        }
    };
    print_table(&tcp, Some(&rdma));
    println!("Times are no comparison: without a device the RDMA run is in an emulated machine.");
    check(&tcp, &rdma)?;
    Ok(0)
}

/// Builds the two programs; the client's path.
fn build() -> Result<PathBuf> {
    let status = host::cargo()
        .args(["build", "--release", "--example", "kv-server", "--example", "kv-client"])
        .current_dir(host::workspace_dir())
        .status()
        .context("cargo build")?;
    if !status.success() {
        return Err(Failure::failed("the examples do not build"));
    }
    Ok(host::target_dir()?.join("release/examples/kv-client"))
}

/// Headers where there are some, else documentation: thousands of files on any Debian. And this repository.
fn data() -> Vec<PathBuf> {
    let many = ["/usr/include", "/usr/share/doc"].map(Path::new);
    let rich = |dir: &&Path| std::fs::read_dir(dir).is_ok_and(|entries| entries.count() > 50);
    let system = many.into_iter().find(rich);
    system.into_iter().chain([host::workspace_dir()]).map(Path::to_path_buf).collect()
}

fn over_rdma(client: &Path, data: &[PathBuf]) -> Result<Report> {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, |entries| entries.count());
    if devices > 0 {
        println!("over RDMA, on this machine's device");
        return run_here(client, "rdma", data);
    }
    println!("over RDMA: this machine has no device, so in a virtual machine with Soft-RoCE");
    packages::ensure(packages::VM)?;
    let mut report = Report::new();
    let vm = Vm { timeout: PATIENCE, ..Vm::default() };
    let words: Vec<_> = words(client, data).iter().map(|w| host::quote(w)).collect();
    let status = vm.run(&format!("FARCALL_TRANSPORT=rdma {}", words.join(" ")), |line| {
        note(&mut report, line.text);
        match line.stream {
            Stream::Out => show(line.text),
            Stream::Err => vm::print(line)?,
        }
        Ok(())
    })?;
    if status != 0 {
        return Err(Failure::failed(format!("the client in the VM ended with status {status}")));
    }
    Ok(report)
}

fn words(client: &Path, data: &[PathBuf]) -> Vec<String> {
    let mut words = vec![client.display().to_string(), "load".into()];
    words.extend(data.iter().map(|d| d.display().to_string()));
    words
}

fn run_here(client: &Path, transport: &str, data: &[PathBuf]) -> Result<Report> {
    let mut report = Report::new();
    let mut command = Command::new(client);
    command.arg("load").args(data).env("FARCALL_TRANSPORT", transport);
    let status = host::stream(&mut command, |line| {
        note(&mut report, line);
        show(line);
    })?;
    if !status.success() {
        return Err(Failure::failed(format!("the client over {transport}: {status}")));
    }
    Ok(report)
}

/// Lines of progress begin with a space; those of the report do not.
fn show(line: &[u8]) {
    if line.starts_with(b" ") {
        print!("{}", String::from_utf8_lossy(line));
    }
}

fn note(report: &mut Report, line: &[u8]) {
    let line = String::from_utf8_lossy(line);
    if let Some((name, value)) = line.trim_end().split_once(": ")
        && ROWS.contains(&name)
    {
        report.insert(name.to_owned(), value.to_owned());
    }
}

fn print_table(tcp: &Report, rdma: Option<&Report>) {
    let value = |report: Option<&Report>, row: &str| {
        report.map_or("not run", |r| r.get(row).map_or("-", String::as_str)).to_owned()
    };
    println!("\n{:<26} {:<44} RDMA", "", "TCP");
    for row in ROWS {
        println!("{row:<26} {:<44} {}", value(Some(tcp), row), value(rdma, row));
    }
    println!();
}

fn check(tcp: &Report, rdma: &Report) -> Result<()> {
    for (name, report) in [("TCP", tcp), ("RDMA", rdma)] {
        if report.get("mismatches").map(String::as_str) != Some("0") {
            return Err(Failure::failed(format!("over {name} not every file came back as it was")));
        }
    }
    let share = rdma.get("payload share of TCP").and_then(|s| s.trim_end_matches(" %").parse::<f64>().ok());
    match share {
        Some(share) if share < TCP_SHARE_PERCENT => Ok(()),
        _ => Err(Failure::failed(format!(
            "in the RDMA run TCP carried more than {TCP_SHARE_PERCENT} % of the payload"
        ))),
    }
}
