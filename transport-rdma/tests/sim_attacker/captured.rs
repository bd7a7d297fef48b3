//! Sealed messages that were captured, and come again where another belongs: an earlier one, one of another connection, one of an
//! earlier link of this one; and messages that change places.

use std::time::Duration;

use super::*;
use crate::sessions::setup_with;

/// All messages that crossed, and one that is to cross in place of the next.
#[derive(Default)]
struct Captured {
    /// By the queue pair that they went to. The ends of a link come in the order in which the first message came to them: its
    /// server, whom the client probes, and then its client.
    heard: Vec<(u32, Vec<Vec<u8>>)>,
    forged: Option<(u32, Vec<u8>)>,
}

impl Captured {
    fn cross(&mut self, to: u32, bytes: &mut Vec<u8>) {
        let at = self.heard.iter().position(|(end, _)| *end == to).unwrap_or_else(|| {
            self.heard.push((to, Vec::new()));
            self.heard.len() - 1
        });
        self.heard[at].1.push(bytes.clone());
        if let Some((_, forged)) = self.forged.take_if(|(end, _)| *end == to) {
            assert_ne!(*bytes, forged);
            *bytes = forged;
        }
    }
}

/// Two connections between two hosts, and somebody on the network who captures their messages.
struct Scene {
    attacked: Setup,
    beside: Setup,
    captured: Arc<Mutex<Captured>>,
    /// How many calls were made. Each has an argument of its own.
    calls: u64,
}

/// The end of a link that messages come to.
#[derive(Clone, Copy, Debug)]
enum At {
    Server = 0,
    Client = 1,
}

/// The place of the attacked connection's first link in what is heard, and that of the other's. The ends of a link are neighbours.
const FIRST: usize = 0;
const BESIDE: usize = 2;

impl Scene {
    async fn new(seed: u64, retry_ms: u64) -> Self {
        let attacked = setup_with(seed, retry_ms, |_| {});
        let captured: Arc<Mutex<Captured>> = Arc::default();
        let ear = Arc::clone(&captured);
        attacked.fabric.tap(move |crossing, to, bytes| {
            if crossing == Crossing::Message {
                ear.lock().unwrap().cross(to, bytes);
            }
        });
        let beside = attacked.beside();
        let mut scene = Self { attacked, beside, captured, calls: 0 };
        // The other has said more, so that it has a message for every place that is attacked here.
        scene.load(20).await;
        scene.load_beside(40).await;
        scene
    }

    async fn load(&mut self, calls: u64) {
        self.attacked.load(self.calls..self.calls + calls).await;
        self.calls += calls;
    }

    async fn load_beside(&mut self, calls: u64) {
        self.beside.load(self.calls..self.calls + calls).await;
        self.calls += calls;
    }

    /// The queue pair at an end of a link.
    fn end(&self, link: usize, at: At) -> u32 {
        self.captured.lock().unwrap().heard[link + at as usize].0
    }

    /// Has a message cross in place of the next to an end, given how many have come to it.
    fn forge(&self, link: usize, at: At, forged: impl FnOnce(&Captured, usize) -> Vec<u8>) {
        let mut captured = self.captured.lock().unwrap();
        let (end, heard) = &captured.heard[link + at as usize];
        captured.forged = Some((*end, forged(&captured, heard.len())));
    }

    /// Waits until the attack has been made. The link must have ended for it, and nothing else have come of it.
    async fn check(&mut self, name: &str) {
        self.load(20).await;
        assert!(self.captured.lock().unwrap().forged.is_none(), "{name}: it did not happen");
        let connection = self.attacked.caller.connection().await.unwrap();
        let (transport, why) = (connection.transport().name, connection.transport().why_not_rdma);
        let why = why.map(|why| why.to_string()).unwrap_or_default();
        assert_eq!(transport, "memory", "{name}");
        assert!(why.contains("what the peer has sealed"), "{name}: {why}");
        let connection = self.beside.caller.connection().await.unwrap();
        let received = connection.traffic().upgraded.bytes_received;
        self.load_beside(20).await;
        assert_eq!(connection.transport().name, "rdma", "{name}");
        assert!(connection.traffic().upgraded.bytes_received > received + 100_000, "{name}");
        assert_eq!(self.attacked.host.connections().len(), 2, "{name}: a connection was lost");
        // `load` has seen that nothing was executed twice.
        assert_eq!(self.attacked.executed.lock().unwrap().len() as u64, self.calls, "{name}");
    }
}

/// Chooses one of the messages before.
type Earlier = fn(&[Vec<u8>]) -> &Vec<u8>;

#[tokio::test]
async fn a_message_that_comes_again_costs_the_link_only() {
    let earlier: [Earlier; 3] =
        [|all| &all[0], |all| all.iter().max_by_key(|bytes| bytes.len()).unwrap(), |all| all.last().unwrap()];
    for (n, earlier) in earlier.into_iter().enumerate() {
        for (seed, at) in [(2, At::Server), (3, At::Client)] {
            let mut scene = Scene::new(seed + 4 * n as u64, 0).await;
            scene.forge(FIRST, at, |captured, _| earlier(&captured.heard[FIRST + at as usize].1).clone());
            scene.check(&format!("{at:?}, message {n}")).await;
        }
    }
}

#[tokio::test]
async fn a_message_of_another_connection_costs_the_link_only() {
    for (seed, at) in [(2, At::Server), (3, At::Client), (6, At::Client), (7, At::Server)] {
        let mut scene = Scene::new(seed, 0).await;
        // It has the number that the one has in whose place it comes.
        scene.forge(FIRST, at, |captured, number| captured.heard[BESIDE + at as usize].1[number].clone());
        scene.check(&format!("{at:?}")).await;
    }
}

#[tokio::test]
async fn a_message_of_an_earlier_link_costs_the_link_only() {
    for (seed, at) in [(2, At::Server), (3, At::Client), (6, At::Client), (7, At::Server)] {
        let mut scene = Scene::new(seed, 30_000).await;
        scene.load(40).await;
        assert!(scene.attacked.fabric.kill_qp(scene.end(FIRST, At::Server)));
        // From now on its messages are those of another link, whose queue pairs may have the numbers of those before.
        let before: Vec<_> = scene.captured.lock().unwrap().heard.drain(..BESIDE).collect();
        let connection = scene.attacked.caller.connection().await.unwrap();
        let is_second = || scene.captured.lock().unwrap().heard.len() == 4;
        let up = async {
            while !is_second() || connection.transport().name != "rdma" {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), up).await.expect("no second link");
        scene.load(10).await;
        const SECOND: usize = 2;
        // No third link takes the place of the second before that is looked at.
        let _held = scene.attacked.machine.stall("ibv_create_qp");
        scene.forge(SECOND, at, |_, number| before[at as usize].1[number].clone());
        scene.check(&format!("{at:?}")).await;
    }
}

#[tokio::test]
async fn messages_that_change_places_cost_the_link_only() {
    for seed in [2, 3, 6, 7] {
        let mut scene = Scene::new(seed, 0).await;
        let fabric = Arc::clone(&scene.attacked.fabric);
        let server = scene.end(FIRST, At::Server);
        fabric.set_traffic(false);
        let swap = async {
            while !fabric.swap_messages(server) {
                tokio::task::yield_now().await;
            }
            fabric.set_traffic(true);
        };
        tokio::join!(scene.load(20), swap);
        scene.check("two messages").await;
    }
}
