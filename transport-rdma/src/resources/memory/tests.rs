use super::*;
use crate::device::{Device, Host, QueueSize};
use crate::sim::{Fabric, SimHost};

struct Bench {
    host: SimHost,
    queues: Arc<dyn Queues>,
    memory: Arc<Memory>,
}

impl Bench {
    fn new(steps: u64) -> Self {
        let host = Fabric::new(1).host([10, 0, 0, 1].into());
        let config = RdmaConfig { memory: steps * STEP_BYTES, bulk_memory: 0, ..RdmaConfig::default() };
        let device: Arc<dyn Device> = host.open(&host.devices().unwrap()[0], &config).unwrap();
        let receives = Memory::max_receives(&config);
        let queues = device.create_queues(QueueSize { receives, sends: 64 }).unwrap();
        let control = Control::start(device.name(), Arc::clone(&device)).unwrap();
        let memory = Memory::new(&config, device, control, &queues, receives);
        Self { host, queues, memory }
    }

    fn admit(&self) -> Option<CreditLease> {
        let lease = self.memory.admit();
        self.check();
        lease.ok()
    }

    /// Admits peers until there is no room.
    fn admit_all(&self) -> Vec<CreditLease> {
        std::iter::from_fn(|| self.admit()).collect()
    }

    fn lend(&self, lease: &mut CreditLease) -> u32 {
        let lent = lease.lend();
        self.settle();
        self.check();
        lent
    }

    /// Waits for the control thread.
    fn settle(&self) {
        let (done, wait) = std::sync::mpsc::channel();
        self.memory.control.spawn(move || done.send(()).unwrap());
        wait.recv().unwrap();
    }

    /// Everything that peers may send finds a receive, with five in a hundred to spare.
    fn check(&self) {
        let promised = self.memory.ledger().promised;
        assert!(promised * 100 <= self.queues.receives_posted() as u32 * 95, "{promised} promised");
    }
}

#[test]
fn peer_begins_small_and_its_window_doubles_up_to_the_limit() {
    let bench = Bench::new(3);
    let mut lease = bench.admit().unwrap();
    let mut windows = vec![lease.window()];
    while bench.lend(&mut lease) > 0 {
        windows.push(lease.window());
    }
    assert_eq!(windows, [4, 8, 16, 32, 64]);
    assert_eq!(bench.queues.receives_posted(), POSTED as usize, "one step is enough for that");
}

#[test]
fn idle_peers_take_their_base_and_no_more() {
    let bench = Bench::new(3);
    let promises = bench.admit_all();
    assert_eq!(promises.len() as u32, 3 * PROMISED / BASE);
    assert!(promises.iter().all(|lease| lease.window() == BASE_WINDOW));
    assert_eq!(bench.queues.receives_posted(), 3 * POSTED as usize);
}

#[test]
fn lending_leaves_half_of_what_is_free_and_gets_more_memory() {
    let bench = Bench::new(2);
    let mut promises: Vec<_> = (0..16).map(|_| bench.admit().unwrap()).collect();
    assert_eq!(bench.queues.receives_posted(), POSTED as usize);
    while promises.iter_mut().any(|lease| bench.lend(lease) > 0) {}
    assert_eq!(bench.queues.receives_posted(), 2 * POSTED as usize, "lending grows the memory, too");
    assert!(bench.memory.ledger().free() <= 4);
    assert!(promises.iter().filter(|lease| lease.lent() > 0).count() >= 4);
}

#[test]
fn lent_memory_comes_back_when_it_is_given_back_and_not_before() {
    let bench = Bench::new(1);
    let mut busy = bench.admit().unwrap();
    while bench.lend(&mut busy) > 0 {}
    let others = bench.admit_all();
    assert!(bench.admit().is_none());
    let asked = busy.ask(Instant::now()).unwrap();
    assert_eq!(asked, 60);
    assert_eq!(busy.ask(Instant::now()), None, "once");
    assert_eq!(bench.lend(&mut busy), 0, "nothing is lent to one that was asked");
    assert!(bench.admit().is_none());
    assert!(!busy.was_asked_for(asked + 1), "more than it was asked for");
    assert!(busy.was_asked_for(asked - 10));
    busy.give_back(asked - 10);
    assert!(!busy.was_asked_for(1), "it was not asked again");
    bench.check();
    let more = bench.admit_all();
    assert_eq!(more.len() as u32, 50 / BASE);
    drop((busy, others, more));
    assert_eq!(bench.memory.ledger().promised, 0);
}

#[test]
fn ledger_is_exact_whatever_peers_do() {
    let bench = Bench::new(2);
    let mut random = fastrand::Rng::with_seed(7);
    let mut promises: Vec<CreditLease> = Vec::new();
    for _ in 0..5000 {
        let pick = if promises.is_empty() { 0 } else { random.usize(0..promises.len()) };
        match random.u8(0..6) {
            0 => promises.extend(bench.admit()),
            1 if !promises.is_empty() => drop(promises.swap_remove(pick)),
            2 | 3 if !promises.is_empty() => drop(promises[pick].lend()),
            4 if !promises.is_empty() => drop(promises[pick].ask(Instant::now())),
            _ if !promises.is_empty() => {
                if let Some((asked, _)) = promises[pick].asked {
                    let count = random.u32(0..=asked);
                    assert!(promises[pick].was_asked_for(count));
                    promises[pick].give_back(count);
                }
            }
            _ => {}
        }
        bench.check();
        let sum: u32 = promises.iter().map(|lease| CreditLease::receives(lease.window)).sum();
        assert_eq!(bench.memory.ledger().promised, sum);
        assert!(promises.iter().all(|p| (BASE_WINDOW..=64).contains(&p.window)));
    }
}

#[test]
fn memory_limit_stops_lending_before_it_refuses_peers() {
    let bench = Bench::new(100);
    bench.host.limit_memory(Some(2 * STEP_BYTES));
    let mut busy = bench.admit().unwrap();
    while bench.lend(&mut busy) > 0 {}
    let mut promises = vec![busy];
    let reason = loop {
        match bench.memory.admit() {
            Ok(lease) => promises.push(lease),
            Err(NoRoom::Receives(refused)) => break refused.unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(matches!(reason, Unavailable::Memlock(_)), "{reason}");
    assert!(promises.len() > 30, "{}", promises.len());
    bench.check();
}

#[test]
fn step_whose_receives_were_refused_is_not_lost() {
    let bench = Bench::new(1);
    bench.host.limit_memory(Some(STEP_BYTES));
    // It is the third call, after the registrations.
    bench.host.fail_call_after(2);
    let refused = bench.memory.admit().unwrap_err();
    assert!(matches!(refused, NoRoom::Receives(Some(Unavailable::Device(_)))), "{refused:?}");
    assert!(bench.host.has_failed());
    bench.check();
    assert!(bench.admit().is_some());
    assert_eq!(bench.queues.receives_posted(), POSTED as usize);
}

#[test]
fn step_that_failed_half_way_goes_on_from_there() {
    let bench = Bench::new(1);
    bench.host.limit_memory(Some(STEP_BYTES - 1));
    for _ in 0..10 {
        let refused = bench.memory.admit().unwrap_err();
        assert!(matches!(refused, NoRoom::Receives(Some(Unavailable::Memlock(_)))), "{refused:?}");
    }
    bench.host.limit_memory(Some(STEP_BYTES));
    assert!(bench.admit().is_some());
}
