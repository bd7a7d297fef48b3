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

/// What the guest says: the command's output, and on `status` how far it is.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) stdout: UnixStream,
    pub(super) stderr: UnixStream,
    pub(super) status: UnixStream,
}

impl Machine {
    /// Starts the machine of `guest`. Its files are `dir`/NAME.*, and `dir` must outlive it.
    ///
    /// Returns when QEMU has connected the channels, before the guest has booted.
    pub(super) fn start(
        vm: &Vm,
        guest: &Guest,
        kernel: &Path,
        initrd: &Path,
        out: &Path,
        dir: &Path,
    ) -> Result<(Self, Channels)> {
        let file = |suffix: &str| dir.join(format!("{}.{suffix}", guest.name));
        let console = file("console");
        let complaints = File::create(file("qemu")).context("the file for QEMU's messages")?;
        // QEMU must not outlive this process even if that is killed, when no Drop runs.
        let mut command = host::system("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        // Software emulation always: it works everywhere, in a VM too, and is the same everywhere.
        command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]);
        command.args(["-smp", &vm.cpus(guest).to_string(), "-m", &vm.memory_mib.to_string()]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        command.args(["-append", "console=ttyS0 quiet panic=-1 oops=panic mitigations=off net.ifnames=0"]);
        command.arg("-serial").arg(option("file:", &console, ""));
        share(&mut command, "host", Path::new("/"), "readonly=on,multidevs=remap");
        share(&mut command, "out", out, "multidevs=remap");
        guest.wire(&mut command, dir);
        command.args(["-device", "virtio-serial-pci"]);
        let mut listen = |name: &str| -> Result<UnixListener> {
            let path = file(name);
            command.arg("-chardev").arg(option(&format!("socket,id={name},path="), &path, ""));
            command.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
            let listener = UnixListener::bind(&path).context(path.display())?;
            listener.set_nonblocking(true).context(path.display())?;
            Ok(listener)
        };
        let [stdout, stderr, status] = [listen("stdout")?, listen("stderr")?, listen("status")?];

        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        let mut machine =
            Self { name: guest.name, qemu: Killed(command.spawn().context("starting QEMU")?), console };
        let mut accept = |listener| machine.accept(&file("qemu"), listener);
        let channels =
            Channels { stdout: accept(&stdout)?, stderr: accept(&stderr)?, status: accept(&status)? };
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

    /// Switches the machine off. What the guest has written to its channels before can still be read.
    pub(super) fn kill(&mut self) {
        // It fails only if QEMU has ended.
        let _ = self.qemu.0.kill();
    }

    /// The end of what the guest's kernel and its first programs said, as the end of a message.
    pub(super) fn console_tail(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).replace('\r', "");
        let lines: Vec<&str> = console.lines().collect();
        match lines.len() {
            0 => String::new(),
            count => format!(". Its console:\n{}", lines[count.saturating_sub(CONSOLE_TAIL)..].join("\n")),
        }
    }
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
