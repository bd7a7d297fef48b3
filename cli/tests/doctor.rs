//! `farcall doctor` as people and programs use it, without a device.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod commands;
mod common;
mod files;
mod serving;

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use commands::COMMANDS;
use common::{complaint, farcall, printed};
use files::path;
use serving::Server;

/// The recording of a host. It is one of the transport's tests.
fn host(name: &str) -> String {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport-rdma/tests/hosts");
    hosts.join(name).to_str().unwrap().to_owned()
}

/// Writes a file in a directory for temporary files.
fn file(name: &str, content: &str) -> std::path::PathBuf {
    let path = path(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn recorded(name: &str, more: &[&str]) -> Output {
    farcall(&[&["doctor", "--recorded", &host(name)], more].concat())
}

#[test]
fn the_first_line_names_cause_and_fix_and_the_status_the_severity() {
    let vfio = recorded("no-driver.txt", &[]);
    assert_eq!(vfio.status.code(), Some(2));
    let first = printed(&vfio).lines().next().unwrap().to_owned();
    for part in ["fault:", "0000:3b:00.0", "vfio-pci", "Fix:", "drivers_probe"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let roce = recorded("mellanox-connectx5-roce.txt", &[]);
    assert_eq!(roce.status.code(), Some(1));
    assert!(
        printed(&roce).starts_with("warning: mlx5_0 is on NUMA node 0, this process"),
        "{}",
        printed(&roce)
    );
}

#[test]
fn verbose_says_more() {
    let [short, long] =
        [&[][..], &["--verbose"]].map(|more| printed(&recorded("mellanox-connectx5-roce.txt", more)));
    assert!(!short.contains("[small-packets]") && long.contains("[small-packets]"));
    assert!(!short.contains("RoCE v1,") && long.contains("RoCE v1,"));
    let chosen = "entry 3, RoCE v2, ens1f0np0, chosen: IPv4 by RoCE v2 comes before a link-local address";
    assert!(short.contains(chosen) && long.contains(chosen), "{short}{long}");
    assert!(long.contains("entry 0, RoCE v1, ens1f0np0\n"), "{long}");
}

#[test]
fn nothing_is_coloured_where_nobody_looks() {
    assert!(!printed(&recorded("mellanox-connectx5-roce.txt", &[])).contains('\x1b'));
}

/// Checks a value against the part of JSON Schema that this schema uses.
fn check(whole: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    for (keyword, rule) in schema.as_object().unwrap() {
        let holds = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => true,
            "anyOf" => {
                let failures: Vec<_> = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .map_while(|rule| check(whole, rule, value).err())
                    .collect();
                if failures.len() == rule.as_array().unwrap().len() {
                    return Err(failures.join(", and "));
                }
                true
            }
            "$ref" => {
                let definition = rule.as_str().unwrap().strip_prefix('#').unwrap();
                check(whole, whole.pointer(definition).unwrap(), value)?;
                true
            }
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_u64(),
                    unknown => panic!("type {unknown}"),
                };
                rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is))
            }
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_u64() >= rule.as_u64(),
            "maximum" => value.as_u64() <= rule.as_u64(),
            "items" => {
                value.as_array().unwrap().iter().try_for_each(|item| check(whole, rule, item))?;
                true
            }
            "required" => {
                rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "properties" => {
                let known = |(key, value): (&String, &Value)| {
                    rule.get(key).map_or(Ok(()), |rule| check(whole, rule, value))
                };
                value.as_object().unwrap().iter().try_for_each(known)?;
                true
            }
            "additionalProperties" => {
                let known = &schema["properties"];
                value.as_object().unwrap().keys().all(|key| known.get(key).is_some())
            }
            unknown => panic!("the keyword {unknown} is not checked"),
        };
        if !holds {
            return Err(format!("{keyword} {rule} does not hold for {value}"));
        }
    }
    Ok(())
}

#[test]
fn json_is_as_its_schema_says() {
    let schema: Value = serde_json::from_slice(&farcall(&["doctor", "--schema"]).stdout).unwrap();
    let hosts = std::fs::read_dir(host("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut outputs: Vec<_> = hosts.map(|name| recorded(name.to_str().unwrap(), &["--json"])).collect();
    assert!(outputs.len() >= 8);
    // This machine has a device or not.
    outputs.push(farcall(&["doctor", "--json"]));
    for output in outputs {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report.get("findings").is_some());
        if let Err(why) = check(&schema, &schema, &report) {
            panic!("{why}: {report:#}");
        }
    }
    let server = Server::start(&[]);
    for (host, has_report) in [(server.address.as_str(), true), ("127.0.0.1:1", false)] {
        let pair: Value = serde_json::from_slice(&farcall(&["doctor", host, "--json"]).stdout).unwrap();
        if let Err(why) = check(&schema, &schema, &pair) {
            panic!("{why}: {pair:#}");
        }
        assert_eq!(pair["there"].is_object(), has_report, "{pair:#}");
        if has_report {
            check(&schema, &schema["$defs"]["report"], &pair["there"]).unwrap();
        }
    }
    for wrong in [
        json!({ "devices": [], "chosen": 1, "tried": [], "findings": [] }),
        json!({ "devices": [], "chosen": null, "tried": [] }),
        json!({ "devices": [], "chosen": null, "tried": [], "findings": [], "more": 1 }),
        json!({ "devices": [], "chosen": null, "tried": [{ "what": "x", "result": "maybe", "micros": 1 }], "findings": [] }),
        json!({ "here": null, "there": null, "between": [], "auto": "" }),
        json!({ "there": null, "between": [], "auto": "" }),
    ] {
        assert!(check(&schema, &schema, &wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_record_of_this_machine_gives_its_findings() {
    let record = file("this.txt", "");
    let record = record.to_str().unwrap();
    let here = farcall(&["doctor", "--no-trial", "--json", "--record", record]);
    let again = farcall(&["doctor", "--json", "--recorded", record]);
    let [here, again] = [here, again].map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap());
    // Whether the library can be loaded is known here only.
    let findings = |report: &Value| {
        let all = report["findings"].as_array().unwrap().iter();
        all.filter(|finding| finding["code"] != "library-absent").cloned().collect::<Vec<_>>()
    };
    assert_eq!(findings(&here), findings(&again));
    assert_eq!(here["devices"], again["devices"]);
}

#[test]
fn a_configuration_is_judged_too() {
    let config = file("service.toml", "[rdma]\ndevice = \"mlx5_7\"\n");
    let output = recorded("mellanox-connectx5-roce.txt", &["--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        printed(&output).starts_with("fault: mlx5_7 is configured, the machine has mlx5_0"),
        "{}",
        printed(&output)
    );
}

#[test]
fn a_file_or_option_that_can_not_be_used_is_named() {
    let no_toml = file("wrong.toml", "[rdma\n");
    let no_record = file("no-record.txt", "== \n");
    let cases: [(&[&str], &str); 7] = [
        (&["doctor", "--recorded", "/nonexistent"], "/nonexistent: No such file"),
        (&["doctor", "--recorded", no_record.to_str().unwrap()], "no-record.txt: line 1 is not"),
        (&["doctor", "--config", no_toml.to_str().unwrap()], "wrong.toml: configuration:"),
        (&["doctor", "--root", "/nonexistent"], "/nonexistent: it is no directory"),
        (&["doctor", "--watch", "0"], "0 is not in 1..=3600"),
        (&["doctor", "--recorded", "x", "--watch", "3"], "cannot be used with"),
        (&["docter"], "'doctor'"),
    ];
    for (arguments, says) in cases {
        let output = farcall(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(complaint(&output).contains(says), "{arguments:?}: {}", complaint(&output));
    }
}

#[test]
fn another_root_has_its_own_devices() {
    let root = path("root");
    std::fs::create_dir_all(root.join("sys/class/infiniband/x0")).unwrap();
    let output = farcall(&["doctor", "--root", root.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("modprobe ib_uverbs"), "{}", printed(&output));
}

#[test]
fn shells_and_man_get_what_they_want() {
    for (shell, says) in
        [("bash", "complete -F"), ("zsh", "#compdef farcall"), ("fish", "complete -c farcall")]
    {
        assert!(printed(&farcall(&["completions", shell])).contains(says), "{shell}");
    }
    let pages = path("man");
    std::fs::create_dir_all(&pages).unwrap();
    assert!(farcall(&["manual", pages.to_str().unwrap()]).status.success());
    let page = std::fs::read_to_string(pages.join("farcall-doctor.1")).unwrap();
    assert!(page.contains(".TH farcall") && page.contains("Exit status"), "{page}");
    assert_eq!(farcall(&["manual", "/nonexistent"]).status.code(), Some(64));
}

#[test]
fn every_command_explains_itself() {
    let help = printed(&farcall(&["--help"]));
    for command in COMMANDS {
        assert!(help.contains(command), "{command}");
        let help = printed(&farcall(&[command, "--help"]));
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert_eq!(farcall(&[]).status.code(), Some(64));
    assert!(printed(&farcall(&["--version"])).starts_with("farcall 0."));
}

#[test]
fn codes_are_explained() {
    for (code, says) in [
        ("RETRY_EXC_ERR", "completion status 12"),
        ("ibv_wc_retry_exc_err", "did not answer"),
        ("Unavailable", "status 14"),
        ("no-device", "finding"),
        ("memlock", "LimitMEMLOCK=infinity"),
        ("ecn-off", "/ecn/roce_np/enable/"),
        ("enomem", "ENOMEM of ibv_reg_mr"),
        ("12", "UNIMPLEMENTED"),
        ("port-lost", "device event"),
        ("out_of_sequence", "arrived out of order"),
        ("np_cnp_sent", "notices of congestion (CNP) that this device sent"),
        ("rx_discards_phy", "for lack of buffers"),
        ("rnr_nak_retry_err", "no receive posted (RNR NAK)"),
        ("rx_prio3_pause", "pause frames (PFC) for this priority that came"),
    ] {
        let output = farcall(&["explain", code]);
        assert!(output.status.success() && printed(&output).contains(says), "{code}: {}", printed(&output));
    }
    let unknown = farcall(&["explain", "retry"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(complaint(&unknown).contains("similar ones are RETRY_EXC_ERR"), "{}", complaint(&unknown));
    // Each name of the list is one that can be asked for.
    let list = printed(&farcall(&["explain"]));
    let names = list
        .lines()
        .filter(|line| line.starts_with("  "))
        .map(|line| line.trim_start_matches(|c| c == ' ' || char::is_ascii_digit(&c)));
    for name in names {
        assert!(farcall(&["explain", name]).status.success(), "{name}");
    }
}
