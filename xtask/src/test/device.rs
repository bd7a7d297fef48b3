//! Tests that need an RDMA device: test targets named `vm_*` run in one VM, `pair_*` on both hosts of a pair.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{Run, Tally};
use crate::failure::{Failure, Result};
use crate::host::{self, cargo, quote};
use crate::packages;
use crate::vm::{self, Line, Vm};

/// A built test target.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    executable: String,
    /// The directory of its package, where Cargo would run it.
    directory: String,
}

/// The step that runs the test target `name`, if its name is one of those that need a device.
pub(super) fn step_of(name: &str) -> Option<&'static str> {
    ["vm", "pair"].into_iter().find(|step| name.strip_prefix(step).is_some_and(|rest| rest.starts_with('_')))
}

/// Runs all `vm_*` in one boot.
pub(super) fn one(run: &mut Run) -> Result<()> {
    let programs = build(run, "vm")?;
    // One that fails leaves the others their turn.
    let script = script(run, &programs, "|| status=$?");
    execute(run, programs.len(), |vm, print| vm.run(&script, print))
}

/// Runs all `pair_*` in one boot of each host.
pub(super) fn pair(run: &mut Run) -> Result<()> {
    let programs = build(run, "pair")?;
    // When one fails, its host leaves, and the other one is not kept waiting for it.
    let script = script(run, &programs, "--test-threads=1 || exit");
    execute(run, 2 * programs.len(), |vm, print| vm.run_pair([&script, &script], print))
}

/// Builds the test targets of a step outside the VM. It is an error if there are none: a test that is never found would
/// never fail.
fn build(run: &Run, step: &str) -> Result<Vec<Program>> {
    packages::ensure(packages::TESTS)?;
    let all = [format!("{step}_*")];
    let wanted: Vec<_> = run.programs.iter().filter(|name| step_of(name) == Some(step)).collect();
    let wanted = if wanted.is_empty() { all.iter().collect() } else { wanted };
    let mut build = cargo();
    build.args([
        "test",
        "--no-run",
        "--workspace",
        "--all-features",
        "--message-format=json-render-diagnostics",
    ]);
    if run.long {
        // An emulated processor has enough to do.
        build.arg("--release");
    }
    build.args(wanted.iter().flat_map(|name| ["--test", name]));
    build.current_dir(host::workspace_dir()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let messages = host::output(&mut build)?;
    let mut programs =
        messages.lines().filter_map(|message| program(message, step)).collect::<Result<Vec<_>>>()?;
    // Cargo names them as they are ready. They share a machine, so a failure is found again only in one order.
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() {
        return Err(Failure::failed(format!("cargo built no test target {step}_*")));
    }
    Ok(programs)
}

/// The program that one of Cargo's messages announces, if it is a test of this step.
fn program(message: &str, step: &str) -> Option<Result<Program>> {
    let (_, target) = message.split_once(r#""target":{"kind":["test"]"#)?;
    let name = text_field(target, "name").filter(|name| step_of(name) == Some(step))?;
    if target.contains(r#""doctest":false,"test":true"#) {
        return Some(Err(Failure::failed(format!(
            "the test target {name} would run without a device too: \
             give it a [[test]] section with `test = false` in its Cargo.toml"
        ))));
    }
    let executable = text_field(target, "executable")?;
    let directory = Path::new(text_field(message, "manifest_path")?).parent()?.to_str()?;
    Some(Ok(Program {
        name: name.to_owned(),
        executable: executable.to_owned(),
        directory: directory.to_owned(),
    }))
}

/// The value of a field of a JSON object in one line. Cargo's paths and names need no escapes here.
fn text_field<'a>(object: &'a str, field: &str) -> Option<&'a str> {
    let (_, rest) = object.split_once(&format!(r#""{field}":""#))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// A shell script that runs the programs one after the other, each with `ending` behind its arguments.
fn script(run: &Run, programs: &[Program], ending: &str) -> String {
    let mut script = String::from("status=0\n");
    if run.long {
        script += "export FARCALL_LONG=1\n";
    }
    let given: Vec<_> = run.arguments.iter().map(|argument| quote(argument)).collect();
    for Program { name, executable, directory } in programs {
        // Writing to a String does not fail.
        let _ = writeln!(script, "echo '     Running {name}'; cd {}", quote(directory));
        let _ = writeln!(script, "{} {} {ending}", quote(executable), given.join(" "));
    }
    script + "exit $status\n"
}

/// Boots, prints, counts, and checks that every program has reported a result and some test has run.
fn execute(
    run: &mut Run,
    programs: usize,
    boot: impl FnOnce(&Vm, &mut dyn FnMut(Line<'_>) -> io::Result<()>) -> Result<u8>,
) -> Result<()> {
    let minutes = if run.long { 240 } else { 30 };
    let vm = Vm { timeout: Duration::from_secs(60 * minutes), ..Vm::default() };
    let mut tally = Tally::default();
    let status = boot(&vm, &mut |line| {
        tally.line(line.text);
        vm::print(line)
    });
    run.tally.add(tally);
    match status? {
        0 if tally.programs != programs => Err(Failure::failed(format!(
            "{programs} programs should have reported a result, and {} did",
            tally.programs
        ))),
        0 if tally.passed == 0 => Err(Failure::failed("no test has run")),
        0 => Ok(()),
        status => Err(Failure::failed(format!("exit status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/net#0.1.0","manifest_path":"/p/net/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"vm_link","src_path":"/p/net/tests/vm_link.rs","edition":"2024","doc":false,"doctest":false,"test":false},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/t/deps/vm_link-1"],"executable":"/t/deps/vm_link-1","fresh":true}"#;

    fn run(script: &str) -> (String, Option<i32>) {
        let output = Command::new("bash").args(["-c", script]).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    fn programs(executables: &[&str]) -> Vec<Program> {
        let program = |executable: &&str| Program {
            name: "vm_x".to_owned(),
            executable: (*executable).to_owned(),
            directory: "/".to_owned(),
        };
        executables.iter().map(program).collect()
    }

    #[test]
    fn a_test_target_is_found_by_its_name() {
        let expected = Program {
            name: "vm_link".to_owned(),
            executable: "/t/deps/vm_link-1".to_owned(),
            directory: "/p/net".to_owned(),
        };
        assert_eq!(program(MESSAGE, "vm").unwrap().unwrap(), expected);
        assert!(program(MESSAGE, "pair").is_none());
        assert!(program(&MESSAGE.replace(r#"["test"]"#, r#"["bin"]"#), "vm").is_none());
        assert_eq!((step_of("vm_link"), step_of("pair_x")), (Some("vm"), Some("pair")));
        assert_eq!((step_of("vmlink"), step_of("machine")), (None, None));
    }

    #[test]
    fn a_test_target_that_would_run_without_a_device_is_refused() {
        let message = MESSAGE.replace(r#""doctest":false,"test":false"#, r#""doctest":false,"test":true"#);
        assert!(program(&message, "vm").unwrap().unwrap_err().to_string().contains("`test = false`"));
    }

    #[test]
    fn in_one_vm_all_programs_run_and_any_failure_counts() {
        let programs = programs(&["/bin/false", "/bin/pwd"]);
        let (said, status) = run(&script(&Run::default(), &programs, "|| status=$?"));
        assert_eq!((said.matches("Running vm_x").count(), said.ends_with("/\n")), (2, true));
        assert_eq!(status, Some(1));
    }

    #[test]
    fn on_a_pair_the_first_failure_ends_the_run() {
        let programs = programs(&["/bin/false", "/bin/pwd"]);
        let (said, status) = run(&script(&Run::default(), &programs, "|| exit"));
        assert_eq!(said.matches("Running vm_x").count(), 1);
        assert_eq!(status, Some(1));
    }

    #[test]
    fn arguments_reach_every_program() {
        let asked = Run { arguments: vec!["it's".to_owned(), "a b".to_owned()], ..Run::default() };
        let (said, status) = run(&script(&asked, &programs(&["/bin/echo"]), "|| exit"));
        assert!(said.ends_with("it's a b\n"), "{said}");
        assert_eq!(status, Some(0));
    }
}
