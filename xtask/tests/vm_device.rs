//! The VM from inside: its RDMA device works.

use std::fs;
use std::process::Command;

#[test]
fn the_port_is_active() {
    let port = "/sys/class/infiniband/rxe0/ports/1";
    assert_eq!(fs::read_to_string(format!("{port}/state")).unwrap(), "4: ACTIVE\n");
    assert_eq!(fs::read_to_string(format!("{port}/link_layer")).unwrap(), "Ethernet\n");
}

#[test]
fn messages_pass_between_two_queue_pairs() {
    let pingpong = |server: &[&str]| {
        let mut command = Command::new("ibv_rc_pingpong");
        command.args(["-d", "rxe0", "-g", "1", "-p", "18515", "--chk"]).args(server);
        command
    };
    let mut server = pingpong(&[]).spawn().unwrap();
    // It fails until the server listens.
    while !pingpong(&["192.168.77.1"]).output().unwrap().status.success() {
        assert!(server.try_wait().unwrap().is_none(), "the server has ended");
    }
    assert!(server.wait().unwrap().success());
}
