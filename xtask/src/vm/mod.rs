//! Virtual machines that have an RDMA device: Debian's stock kernel with Soft-RoCE under QEMU's software emulation, on
//! this machine's own root file system, read-only below a layer of RAM. The VM runs programs that were built outside.

mod guest;
mod initrd;
mod kernel;
mod options;
mod qemu;
mod watch;

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::failure::{Context, Result};
use crate::host::{self, TempDir};
use crate::packages;
use guest::Guest;
use kernel::Kernel;
pub(crate) use options::command;
use qemu::{Machine, Parts};
pub(crate) use watch::{Line, Stream};

/// How a VM is built and how long it may take. [`run`](Self::run) boots it.
#[derive(Clone, Debug)]
pub(crate) struct Vm {
    /// Virtual CPUs of each machine; where nothing is said 2, and 1 each of a pair.
    pub(crate) cpus: Option<u32>,
    pub(crate) memory_mib: u32,
    /// For the command, from when the guest has booted.
    pub(crate) timeout: Duration,
    /// Whether there is an RDMA device, rxe0.
    pub(crate) rdma: bool,
    /// Whether the command runs as an ordinary user without CAP_IPC_LOCK instead of as root.
    pub(crate) user: bool,
    /// RLIMIT_MEMLOCK, which root does not heed.
    pub(crate) memlock_kib: Option<u64>,
}

impl Default for Vm {
    fn default() -> Self {
        Self {
            cpus: None,
            memory_mib: 2048,
            timeout: Duration::from_secs(600),
            rdma: true,
            user: false,
            memlock_kib: None,
        }
    }
}

impl Vm {
    /// Boots one VM, runs `command` in it with bash and returns the command's exit status. `line` gets what
    /// the command writes, as it comes.
    ///
    /// The command starts in this process's current directory. It sees the host's file system and can write
    /// anywhere, but only what is in the directory `FARCALL_VM_OUT` outlasts the VM.
    pub(crate) fn run(&self, command: &str, line: impl FnMut(Line<'_>) -> io::Result<()>) -> Result<u8> {
        self.boot(&[(&guest::ALONE, command)], line)
    }

    /// Boots two VMs joined by a wire, 10.99.0.1 and 10.99.0.2, and runs a command in each once they reach
    /// each other. Returns the first exit status that is not 0, or 0 when both have ended.
    pub(crate) fn run_pair(
        &self,
        commands: [&str; 2],
        line: impl FnMut(Line<'_>) -> io::Result<()>,
    ) -> Result<u8> {
        let [first, second] = &guest::PAIR;
        self.boot(&[(first, commands[0]), (second, commands[1])], line)
    }

    fn boot(&self, guests: &[(&Guest, &str)], line: impl FnMut(Line<'_>) -> io::Result<()>) -> Result<u8> {
        packages::ensure(packages::VM)?;
        let dir = host::target_dir()?.join("vm");
        let out = dir.join("out");
        fs::create_dir_all(&out).context(out.display())?;
        // As in /tmp, because a command may run as another user.
        fs::set_permissions(&out, Permissions::from_mode(0o1777)).context(out.display())?;
        let kernel = Kernel::in_dir(&dir.join("kernel"))?;

        // Not below the target directory: the path of a socket has at most 107 bytes.
        let temp = TempDir::new_in(&std::env::temp_dir())?;
        let mut machines = Vec::new();
        for (guest, command) in guests {
            let initrd = temp.path().join(format!("{}.initrd", guest.name));
            initrd::write(&initrd, &kernel, &guest.settings(self, &out)?, command)?;
            let parts = Parts {
                vm: self,
                guest,
                kernel: &kernel.image(),
                initrd: &initrd,
                out: &out,
                dir: temp.path(),
            };
            machines.push(Machine::start(&parts)?);
        }
        watch::watch(machines, self.timeout, line)
    }

    fn cpus(&self, guest: &Guest) -> u32 {
        self.cpus.unwrap_or_else(|| if guest.is_paired() { 1 } else { 2 })
    }
}

/// Prints a VM's output: of one as it is, of a pair with the host's name before each line.
pub(crate) fn print(line: Line<'_>) -> io::Result<()> {
    let mut text = line.text.to_vec();
    if let Some(name) = line.host {
        text.splice(0..0, format!("[{name}] ").into_bytes());
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
    }
    match line.stream {
        Stream::Out => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&text)?;
            stdout.flush()
        }
        Stream::Err => io::stderr().write_all(&text),
    }
}
