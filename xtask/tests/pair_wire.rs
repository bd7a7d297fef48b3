//! A pair of VMs from inside: RDMA traffic passes between the hosts.

use std::process::Command;

#[test]
fn messages_pass_between_the_hosts() {
    let host = std::env::var("FARCALL_HOST").unwrap();
    let mut command = Command::new("ibv_rc_pingpong");
    command.args(["-d", "rxe0", "-g", "1", "--chk"]);
    match host.as_str() {
        "1" => assert!(command.status().unwrap().success()),
        "2" => {
            // It fails until the first host listens.
            command.arg("10.99.0.1");
            while !command.output().unwrap().status.success() {}
        }
        other => panic!("FARCALL_HOST={other}"),
    }
}
