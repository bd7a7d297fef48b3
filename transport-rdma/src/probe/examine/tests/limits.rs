//! Limits on locked memory, in containers and outside of them.

use super::*;

#[test]
fn a_container_is_told_how_it_may_lock_memory() {
    let limited = |kib: u64, answers: &str| {
        let limit = kib * 1024;
        let answers = format!(
            "== /proc/self/status\nCapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-15\n\
             == /proc/self/limits\nMax locked memory         {limit}              {limit}              bytes\n{answers}"
        );
        let finding = examined(&mended(&answers), &RdmaConfig::default()).findings.remove(0);
        (finding.code, finding.fix)
    };
    const DOCKER: &str = "== /.dockerenv\n";
    const POD: &str = "== /proc/1/cgroup\n0::/kubepods.slice/kubepods-burstable.slice/x.scope\n";
    for (kib, code) in [(64, "memlock"), (8192, "memlock-low")] {
        for container in [DOCKER, POD] {
            let (found, fix) = limited(kib, container);
            assert_eq!(found, code);
            assert!(fix.contains("`docker run --cap-add=IPC_LOCK --ulimit memlock=-1`"), "{fix}");
            assert!(fix.contains("securityContext: {capabilities: {add: [IPC_LOCK]}}"), "{fix}");
        }
        // The kernel counts the capability in the first user namespace alone.
        let (_, fix) = limited(kib, &format!("{DOCKER}== /proc/self/uid_map\n0 100000 65536\n"));
        assert!(
            fix.contains("IPC_LOCK does not count: start it with `docker run --ulimit memlock=-1`"),
            "{fix}"
        );
        let (found, fix) = limited(kib, "");
        assert_eq!(found, code);
        assert!(fix.contains("/etc/security/limits.conf"), "{fix}");
    }
    // With the capability there is no limit.
    let free = format!(
        "== /proc/self/limits\nMax locked memory         65536                65536                bytes\n{DOCKER}"
    );
    assert_eq!(codes(&examined(&mended(&free), &RdmaConfig::default())), []);
}
