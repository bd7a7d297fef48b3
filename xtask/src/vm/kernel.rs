//! The guest's kernel: Debian's own, downloaded once and unpacked beside the build, never installed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Result};
use crate::host::{self, TempDir};
use crate::packages;

/// Modules that must be in the kernel for the guest to boot and to have an RDMA device, and what tests use
/// beyond that.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "dummy",
    "macvlan",
    "af_packet_diag",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "nf_tables",
];

/// Before 6.16, `rdma link add` fails with ENOENT unless the kernel has a module for the checksum "crc32".
const MODULES_IF_ANY: &[&str] = &["crc32_generic", "crc32-pclmul"];

/// An unpacked kernel package.
#[derive(Debug)]
pub(super) struct Kernel {
    root: PathBuf,
    version: String,
}

impl Kernel {
    /// The kernel kept in `dir`; it is downloaded if `dir` is not there.
    pub(super) fn in_dir(dir: &Path) -> Result<Self> {
        if !dir.exists() {
            download(dir)?;
        }
        let modules = dir.join("lib/modules");
        let mut versions = fs::read_dir(&modules).context(modules.display())?;
        let version = versions.next().and_then(|entry| entry.ok()?.file_name().into_string().ok());
        let version = version.ok_or_else(|| Failure::machine(format!("{}: empty", modules.display())))?;
        Ok(Self { root: dir.to_path_buf(), version })
    }

    pub(super) fn image(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// The files of the guest's modules, each after those that it needs.
    pub(super) fn modules(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for module in MODULES {
            files.extend(self.with_dependencies(module)?);
        }
        // These come last: nothing needs them at load time, rdma_rxe asks for them by the checksum's name.
        for module in MODULES_IF_ANY {
            files.extend(self.with_dependencies(module).unwrap_or_default());
        }
        let mut seen = HashSet::new();
        files.retain(|file| seen.insert(file.clone()));
        Ok(files)
    }

    fn with_dependencies(&self, module: &str) -> Result<Vec<PathBuf>> {
        // An empty configuration, because this machine may forbid modules that its guest needs.
        let plan = host::output(
            host::system("modprobe")
                .args(["--config", "/dev/null", "--show-depends", "--set-version", &self.version])
                .arg("--dirname")
                .arg(&self.root)
                .arg(module),
        )?;
        Ok(plan.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|f| f.trim().into()).collect())
    }
}

/// Puts the kernel at `dir`, whole or not at all: it is made elsewhere and renamed. Two processes that do so at
/// once both download, and the second to finish finds the first one's result.
fn download(dir: &Path) -> Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    let temp = TempDir::new_in(parent)?;
    eprintln!("xtask: downloading the guest's kernel");
    let package = package_name().or_else(|_| {
        packages::with_fresh_lists(host::system("apt-cache").args(["show", "linux-image-amd64"]))?;
        package_name()
    })?;
    let root = packages::unpack(&package, temp.path())?;
    // From Debian 13 on, the package has /usr/lib alone.
    if !root.join("lib").exists() {
        symlink("usr/lib", root.join("lib")).context(root.display())?;
    }
    let kernel = Kernel::in_dir(&root)?;
    host::output(host::system("depmod").arg("--basedir").arg(&root).arg(&kernel.version))?;
    match fs::rename(&root, dir) {
        Err(_) if dir.exists() => Ok(()),
        renamed => renamed.context(dir.display()),
    }
}

/// The package that holds the current kernel: `linux-image-amd64` itself is empty and depends on it.
fn package_name() -> Result<String> {
    let depends = host::output(host::system("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    package.map(|version| format!("linux-image-{version}")).ok_or_else(|| {
        Failure::cannot_run("apt knows no package linux-image-amd64: is this Debian on x86-64?")
    })
}
