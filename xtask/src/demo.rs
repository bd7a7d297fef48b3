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
    "encryption",
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

/// How both programs run.
struct Setup {
    client: PathBuf,
    /// The configuration of TLS, if there is one.
    tls: Option<PathBuf>,
    data: Vec<PathBuf>,
}

pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<u8> {
    let mut tls = false;
    for arg in args {
        match arg.as_str() {
            "--tls" => tls = true,
            other => return Err(Failure::usage(format!("demo takes `--tls` or nothing, not `{other}`"))),
        }
    }
    let features: &[_] = if tls { &["--release", "--features", "tls-ring"] } else { &["--release"] };
    let setup =
        Setup { client: build(features, "release")?, tls: tls.then(certificates).transpose()?, data: data() };
    let shown: Vec<_> = setup.data.iter().map(|d| d.display().to_string()).collect();
    println!("data: every file of {}\n", shown.join(" and "));

    println!("over TCP");
    let tcp = run_here(&setup, "tcp")?;
    let rdma = over_rdma(&setup);
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
    check("TCP", &tcp, tls)?;
    check("RDMA", &rdma, tls)?;
    check_share(&rdma)?;
    Ok(0)
}

/// Runs both halves with TLS, with few files and the programs that the tests have built.
pub(crate) fn brief() -> Result<()> {
    let client = build(&["--workspace", "--all-features"], "debug")?;
    let data = vec![host::workspace_dir().join("docs")];
    let setup = Setup { client, tls: Some(certificates()?), data };
    let (tcp, rdma) = (run_here(&setup, "tcp")?, over_rdma(&setup)?);
    print_table(&tcp, Some(&rdma));
    check("TCP", &tcp, true)?;
    check("RDMA", &rdma, true)
}

/// Builds the two programs with these arguments. Returns the client's path.
fn build(arguments: &[&str], profile: &str) -> Result<PathBuf> {
    let mut build = host::cargo();
    build.args(["build", "--example", "kv-server", "--example", "kv-client"]).args(arguments);
    let status = build.current_dir(host::workspace_dir()).status().context("cargo build")?;
    if !status.success() {
        return Err(Failure::failed("the examples do not build"));
    }
    Ok(host::target_dir()?.join(profile).join("examples/kv-client"))
}

/// Makes a CA, and a certificate of it for both ends. Writes the configuration, and returns its path.
fn certificates() -> Result<PathBuf> {
    packages::ensure(packages::TESTING)?;
    let dir = host::target_dir()?.join("demo-tls");
    std::fs::create_dir_all(&dir).context(dir.display())?;
    let names =
        "subjectAltName=IP:127.0.0.1,URI:spiffe://example.org/kv\nextendedKeyUsage=serverAuth,clientAuth\n";
    std::fs::write(dir.join("names"), names).context(dir.display())?;
    for words in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=demo-ca -days 30",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout kv.key -out kv.csr -subj /CN=kv",
        "x509 -req -in kv.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out kv.pem -days 30 -extfile names",
    ] {
        host::output(host::system("openssl").args(words.split(' ')).current_dir(&dir))?;
    }
    let path = |name: &str| dir.join(name).display().to_string();
    let tls = format!(
        "[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
        path("ca.pem"),
        path("kv.pem"),
        path("kv.key")
    );
    let file = dir.join("kv.toml");
    std::fs::write(&file, tls).context(file.display()).map(|()| file)
}

/// Headers where there are some, else documentation: thousands of files on any Debian. And this repository.
fn data() -> Vec<PathBuf> {
    let many = ["/usr/include", "/usr/share/doc"].map(Path::new);
    let rich = |dir: &&Path| std::fs::read_dir(dir).is_ok_and(|entries| entries.count() > 50);
    let system = many.into_iter().find(rich);
    system.into_iter().chain([host::workspace_dir()]).map(Path::to_path_buf).collect()
}

fn over_rdma(setup: &Setup) -> Result<Report> {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, |entries| entries.count());
    if devices > 0 {
        println!("over RDMA, on this machine's device");
        return run_here(setup, "rdma");
    }
    println!("over RDMA: this machine has no device, so in a virtual machine with Soft-RoCE");
    packages::ensure(packages::VM)?;
    let mut report = Report::new();
    let vm = Vm { timeout: PATIENCE, ..Vm::default() };
    let words: Vec<_> = words(setup).iter().map(|w| host::quote(w)).collect();
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

/// Returns the client's program and arguments.
fn words(setup: &Setup) -> Vec<String> {
    let mut words = vec![setup.client.display().to_string()];
    if let Some(config) = &setup.tls {
        words.extend(["--config".into(), config.display().to_string()]);
    }
    words.push("load".into());
    words.extend(setup.data.iter().map(|d| d.display().to_string()));
    words
}

fn run_here(setup: &Setup, transport: &str) -> Result<Report> {
    let mut report = Report::new();
    let words = words(setup);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("FARCALL_TRANSPORT", transport);
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

/// Checks that every file came back, and encrypted if it had to be.
fn check(transport: &str, report: &Report, tls: bool) -> Result<()> {
    if tls && !report.get("encryption").is_some_and(|how| how.starts_with("yes")) {
        return Err(Failure::failed(format!("{transport} was not encrypted")));
    }
    if report.get("mismatches").map(String::as_str) != Some("0") {
        return Err(Failure::failed(format!("over {transport} not every file came back as it was")));
    }
    Ok(())
}

fn check_share(rdma: &Report) -> Result<()> {
    let share = rdma.get("payload share of TCP").and_then(|s| s.trim_end_matches(" %").parse::<f64>().ok());
    match share {
        Some(share) if share < TCP_SHARE_PERCENT => Ok(()),
        _ => Err(Failure::failed(format!(
            "in the RDMA run TCP carried more than {TCP_SHARE_PERCENT} % of the payload"
        ))),
    }
}
