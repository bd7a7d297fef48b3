//! One machine: a QEMU process and the three channels on which its guest speaks.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Vm;
use super::guest::Guest;
use crate::failure::{Context, Failure, Result};
use crate::host::{self, Killed};

/// Lines of the console that a failure quotes.
const CONSOLE_TAIL: usize = 40;

/// A running machine, which ends when this value goes.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    qemu: Killed,
    console: PathBuf,
}

/// The guest's words: the command's output, and on `status` how far it is.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) stdout: UnixStream,
    pub(super) stderr: UnixStream,
    pub(super) status: UnixStream,
}

/// The parts of a machine.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) vm: &'a Vm,
    pub(super) guest: &'a Guest,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// The directory that the guest may write to.
    pub(super) out: &'a Path,
    /// Where sockets and the console's log are put, under the guest's name. It must outlive the machine.
    pub(super) dir: &'a Path,
}

impl Parts<'_> {
    fn file(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}.{suffix}", self.guest.name))
    }

    /// QEMU's command line, without the channels.
    fn command(&self) -> Command {
        // QEMU must not outlive this process even if that is killed, when no Drop runs. The kernel sends the
        // signal when the thread that started QEMU ends.
        let mut command = host::system("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        // Software emulation always: it works everywhere, in a VM too, and is the same everywhere.
        command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]);
        command.args(["-smp", &self.vm.cpus(self.guest).to_string(), "-m", &self.vm.memory_mib.to_string()]);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initrd);
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1 oops=panic mitigations=off net.ifnames=0 tsc=reliable",
        ]);
        command.arg("-serial").arg(option("file:", &self.file("console"), ""));
        share(&mut command, "host", Path::new("/"), "readonly=on,multidevs=remap");
        share(&mut command, "out", self.out, "multidevs=remap");
        self.guest.wire(&mut command, self.dir);
        command.args(["-device", "virtio-serial-pci"]);
        command
    }

    /// Adds a channel, which QEMU connects to the listener that this returns.
    fn listen(&self, command: &mut Command, name: &str) -> Result<UnixListener> {
        let path = self.file(name);
        command.arg("-chardev").arg(option(&format!("socket,id={name},path="), &path, ""));
        command.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
        let listener = UnixListener::bind(&path).context(path.display())?;
        listener.set_nonblocking(true).context(path.display())?;
        Ok(listener)
    }
}

impl Machine {
    /// Starts a machine. Returns when QEMU has connected the channels, before the guest has booted.
    pub(super) fn start(parts: &Parts<'_>) -> Result<(Self, Channels)> {
        let mut command = parts.command();
        let [stdout, stderr, status] =
            ["stdout", "stderr", "status"].map(|name| parts.listen(&mut command, name));
        let complaints = parts.file("complaints");
        let stream = File::create(&complaints).context(complaints.display())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stream);

        let qemu = Killed(command.spawn().context("starting QEMU")?);
        let mut machine = Self { name: parts.guest.name, qemu, console: parts.file("console") };
        let mut accept = |listener: Result<UnixListener>| machine.accept(&complaints, &listener?);
        let channels = Channels { stdout: accept(stdout)?, stderr: accept(stderr)?, status: accept(status)? };
        Ok((machine, channels))
    }

    /// Waits until QEMU connects, or ends.
    fn accept(&mut self, complaints: &Path, listener: &UnixListener) -> Result<UnixStream> {
        loop {
            host::check_signals()?;
            // Asked before the listener: what connected and then ended is still accepted.
            let ended = self.qemu.0.try_wait().context("QEMU")?;
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).context("QEMU's channel")?;
                    return Ok(stream);
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(error).context("QEMU's channel");
                }
                Err(_) => {}
            }
            if let Some(status) = ended {
                let said = fs::read_to_string(complaints).unwrap_or_default();
                return Err(Failure::machine(format!("QEMU did not start: {status}\n{}", said.trim_end())));
            }
            std::thread::sleep(host::TICK);
        }
    }

    /// Switches the machine off. Output that the guest has written to its channels can still be read.
    pub(super) fn kill(&mut self) {
        // It fails only if QEMU has ended.
        let _ = self.qemu.0.kill();
    }

    /// The end of what the guest's kernel and its first programs said, as the end of a message.
    pub(super) fn console_tail(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).replace('\r', "");
        match tail(&console.lines().collect::<Vec<_>>()) {
            [] => String::new(),
            lines => format!(". Its console:\n{}", lines.join("\n")),
        }
    }
}

/// The last lines, and from a kernel's panic on all: its call trace can be longer than that.
fn tail<'a>(lines: &'a [&'a str]) -> &'a [&'a str] {
    let panic = lines.iter().position(|line| line.contains("Kernel panic"));
    let last = lines.len().saturating_sub(CONSOLE_TAIL);
    &lines[panic.map_or(last, |panic| panic.min(last))..]
}

/// Shares a directory with the guest over 9p. Files are read and written as the user that QEMU runs as.
fn share(command: &mut Command, tag: &str, path: &Path, more: &str) {
    let rest = format!(",mount_tag={tag},security_model=none,{more}");
    command.arg("-virtfs").arg(option("local,path=", path, &rest));
}

/// An option of QEMU with a path in it, where a comma is written twice.
pub(super) fn option(before: &str, path: &Path, after: &str) -> String {
    format!("{before}{}{after}", path.display().to_string().replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_console_reaches_back_to_a_panic() {
        let mut lines = vec!["booting"; 100];
        assert_eq!(tail(&lines).len(), CONSOLE_TAIL);
        lines[10] = "[ 7.7] Kernel panic - not syncing: sysrq triggered crash";
        assert_eq!(tail(&lines), &lines[10..]);
        lines.swap(10, 99);
        assert_eq!(tail(&lines).len(), CONSOLE_TAIL);
        assert_eq!(tail(&["a"]), ["a"]);
    }
}
