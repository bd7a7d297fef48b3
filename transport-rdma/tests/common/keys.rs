//! Scenarios of keys that open nothing.

use farcall_rdma::testing::device::*;

use super::windows::{PAGE, Victim, at, pair};
use super::{Cq, End, Machine, received};

impl End {
    /// Reads all that is exposed of the victim, as the peer that was granted it.
    fn read_all(&self, victim: &Victim, exposure: &Exposure) {
        let (result, bytes) = self.read(&victim.arena, at(exposure), victim.exposed.len());
        assert_eq!(result, Ok(()));
        assert!(bytes[..] == victim.exposed[..]);
    }
}

pub(crate) fn key_of_another_connection_reads_nothing(machine: &Machine, times: usize) {
    let victim = Victim::new(machine, 2 * PAGE);
    let (reader, owner) = pair(machine);
    let exposure = owner.grant(&victim.exposed);
    for _ in 0..times {
        // Another connection between the same two parties, which has windows of its own.
        let (thief, accomplice) = pair(machine);
        let own = accomplice.grant(&victim.exposed.slice(..PAGE));
        let (result, _) = thief.read(&victim.arena, at(&own), PAGE);
        assert_eq!(result, Ok(()));
        thief.read_in_vain(&victim.arena, at(&exposure), 2 * PAGE);
        // The connection that has the grant notices nothing.
        reader.read_all(&victim, &exposure);
    }
    owner.revoke(exposure);
}

pub(crate) fn keys_of_a_window_come_round(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (reader, owner) = machine.pair(16);
    owner.qp.alloc_windows(1).unwrap();
    let mut keys = Vec::new();
    // More than a key's last eight bits can tell apart.
    for _ in 0..300 {
        let exposure = owner.grant(&victim.exposed);
        received(reader.poll(Cq::Receive, 1).remove(0));
        reader.post_receives(1);
        reader.read_all(&victim, &exposure);
        owner.revoke(exposure);
        keys.push(exposure.rkey());
    }
    assert!(keys[..256].iter().collect::<std::collections::BTreeSet<_>>().len() == 256, "{keys:x?}");
}

/// A peer guesses so many keys: the ones around its own and around the victim's, and any others. A wrong one costs it
/// the queue pair, so each has a queue pair of its own.
pub(crate) fn guessed_keys_open_nothing(machine: &Machine, times: usize) {
    let victim = Victim::new(machine, PAGE);
    let (reader, owner) = pair(machine);
    let exposure = owner.grant(&victim.exposed);
    let mut random = fastrand::Rng::with_seed(7);
    for guess in 0..times {
        let (thief, accomplice) = pair(machine);
        let own = accomplice.grant(&victim.exposed.slice(..8));
        // The last eight bits of a key change each time its window is bound. Its index is above them.
        let near = 1 + random.u32(..255);
        let rkey = match guess % 5 {
            0 => own.rkey().wrapping_add(near),
            1 => own.rkey().wrapping_add(near << 8),
            2 => exposure.rkey().wrapping_add(near),
            3 => exposure.rkey().wrapping_add(near << 8),
            _ => random.u32(..),
        };
        thief.read_in_vain(&victim.arena, RemoteRange { rkey, ..at(&exposure) }, 8);
        if guess % 100 == 0 {
            reader.read_all(&victim, &exposure);
        }
    }
    reader.read_all(&victim, &exposure);
    owner.revoke(exposure);
}
