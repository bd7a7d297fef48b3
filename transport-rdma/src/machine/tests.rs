use super::*;

#[test]
fn a_recording_answers_as_the_machine_did() {
    let machine = Machine::this().remembering();
    let seen = (
        machine.read("/proc/sys/kernel/ostype"),
        machine.names("/proc/self/fd").is_empty(),
        machine.try_read("/nonexistent"),
        machine.link("/proc/self/cwd"),
        machine.run(&["echo", "== a", "b"]),
        machine.run(&["no-such-program"]),
        machine.node("/dev/null"),
    );
    assert_eq!(seen.0.as_deref(), Some("Linux"));
    assert_eq!((seen.1, &seen.2), (false, &Err(libc::ENOENT)));
    assert_eq!(seen.4.as_deref(), Ok("== a b"));
    assert_eq!(seen.5, Err(NoOutput::NotInstalled));
    let text = machine.recording();
    let copy = Machine::recorded(&text).unwrap().remembering();
    assert!(!copy.is_this());
    let again = (
        copy.read("/proc/sys/kernel/ostype"),
        copy.names("/proc/self/fd").is_empty(),
        copy.try_read("/nonexistent"),
        copy.link("/proc/self/cwd"),
        copy.run(&["echo", "== a", "b"]),
        copy.run(&["no-such-program"]),
        copy.node("/dev/null"),
    );
    assert_eq!(again, seen);
    assert_eq!(copy.recording(), text);
}

#[test]
fn directories_follow_from_what_is_in_them() {
    let recording = "a comment\n== /sys/a/b\n1\n== /sys/a/c/d\n2\n== /sys/a/e ->\n../x/y\n== /sys/f/\nz\n";
    let machine = Machine::recorded(recording).unwrap();
    assert_eq!(machine.names("/sys/a"), ["b", "c", "e"]);
    assert_eq!(machine.names("/sys/f"), ["z"]);
    assert_eq!(machine.link("/sys/a/e").as_deref(), Some("y"));
    assert!(machine.names("/sys/nowhere").is_empty());
}

#[test]
fn a_file_that_is_no_recording_is_refused_with_its_line() {
    for (text, line) in [("== \n", 1), ("== /a\n==/b\n", 2), ("== /a !x\n", 1), ("== /a !2\ntext\n", 2)] {
        let refused = Machine::recorded(text).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("line {line} ")), "{text:?}: {refused}");
    }
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let ended = program::run(&["sleep", "1000"], std::time::Duration::from_millis(50));
    assert_eq!(ended.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
}

#[test]
fn files_below_a_directory_are_another_machines() {
    let machine = Machine::below("/proc");
    assert_eq!(machine.read("/sys/kernel/ostype").as_deref(), Some("Linux"));
    assert_eq!(machine.run(&["echo", "here"]), Err(NoOutput::NotRun));
    assert!(machine.interfaces(|| "lo 127.0.0.1/8".to_owned()).is_empty());
}

#[test]
fn a_program_without_output_says_why() {
    let machine = Machine::this().remembering();
    let shell = |script: &str| machine.run(&["sh", "-c", script]);
    for (script, why) in [
        ("echo no; exit 3", NoOutput::Failed),
        ("echo 'Operation not permitted (you must be root)' >&2; exit 1", NoOutput::Refused),
        (
            "echo 'Could not fetch rule set generation id: Permission denied (you must be root)' >&2; exit 4",
            NoOutput::Refused,
        ),
        ("echo 'Attribute read: Operation not supported' >&2; exit 1", NoOutput::Unsupported),
        ("echo 'no stats available' >&2; exit 94", NoOutput::Unsupported),
        ("kill $$", NoOutput::Failed),
    ] {
        assert_eq!(shell(script), Err(why), "{script}");
        // The record says so, too.
        let copy = Machine::recorded(&machine.recording()).unwrap();
        assert_eq!(copy.run(&["sh", "-c", script]), Err(why), "{script}");
    }
    // A program that works may complain about something else.
    assert_eq!(shell("echo yes; echo 'not permitted' >&2").as_deref(), Ok("yes"));
    let copy = Machine::recorded("== $ nft -s list ruleset !1\n").unwrap();
    assert_eq!(copy.run(&["nft", "-s", "list", "ruleset"]), Err(NoOutput::Refused));
    assert_eq!(copy.run(&["ethtool", "-a", "eth0"]), Err(NoOutput::NotRecorded));
    let below = Machine::below("/proc").remembering();
    assert_eq!(below.run(&["true"]), Err(NoOutput::NotRun));
    assert_eq!(Machine::recorded(&below.recording()).unwrap().run(&["true"]), Err(NoOutput::NotRun));
}
