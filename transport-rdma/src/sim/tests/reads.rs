//! READs that are late, refused or never answered.

use super::*;

/// Something to read: an exposure of a thousand bytes, bound when the owner next does anything, and where they go.
struct Exposed {
    arena: Arc<Arena>,
    exposure: Exposure,
    into: Arc<ReadTarget>,
}

impl Exposed {
    fn new(owner: &End, reader: &End) -> Self {
        owner.qp.alloc_windows(1).unwrap();
        let arena = owner.device.add_arena(1 << 16).unwrap();
        let mut extent = arena.take(1000).unwrap();
        extent.fill(8);
        let exposure = owner.qp.expose(&extent.freeze(0..1000)).unwrap();
        owner.qp.post(&mut VecDeque::from([Work::Bind(exposure)])).unwrap();
        let into = ReadTarget::new(reader.device.add_arena(1 << 14).unwrap().take(1000).unwrap());
        assert!(owner.poll(Cq::Send).is_empty());
        Self { arena, exposure, into }
    }

    fn read(&self, reader: &End, tag: u64) {
        let from = RemoteRange { addr: self.exposure.addr(), rkey: self.exposure.rkey() };
        let into = Arc::clone(&self.into);
        let read = Work::Read { into, at: 0, len: 1000, from, tag };
        assert_eq!(reader.qp.post(&mut VecDeque::from([read])).unwrap(), 1);
    }

    /// Returns the bytes, when no READ is under way.
    fn landed(self) -> Extent {
        ReadTarget::into_extent(self.into).expect("a READ is outstanding")
    }
}

#[test]
fn read_that_is_held_back_comes_late_or_fails() {
    for late in [true, false] {
        let fabric = Fabric::new(1);
        let (a, b) = pair(&fabric);
        let exposed = Exposed::new(&b, &a);
        b.receives(2);
        fabric.set_reads(false);
        exposed.read(&a, 3);
        a.send(1);
        assert!(a.poll(Cq::Send).is_empty(), "a message does not complete before the READ in front of it");
        assert_eq!(b.received(), [1], "but it arrives");
        if late {
            fabric.set_reads(true);
            let completions = a.poll(Cq::Send);
            assert!(
                matches!(completions[..], [Completion::Moved { tag: 3, .. }, Completion::Sent { .. }]),
                "{completions:?}"
            );
            assert_eq!(exposed.landed()[..], [8; 1000]);
        } else {
            fabric.expire();
            assert_eq!(a.failures(), [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
            assert_eq!(exposed.landed()[..], [0xdd; 1000], "what a posted READ will write is overwritten");
        }
    }
}

#[test]
fn read_fails_as_it_is_told_and_takes_both_ends_with_it() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    let exposed = Exposed::new(&b, &a);
    fabric.fail_read(WcStatus::REM_OP_ERR);
    exposed.read(&a, 1);
    exposed.read(&a, 2);
    assert_eq!(a.failures(), [WcStatus::REM_OP_ERR, WcStatus::WR_FLUSH_ERR]);
    assert_eq!(exposed.landed()[..], [0xdd; 1000]);
    b.send(1);
    assert_eq!(b.failures(), [WcStatus::WR_FLUSH_ERR]);
}

#[test]
fn read_whose_grant_ends_on_the_way_gets_nothing() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    let exposed = Exposed::new(&b, &a);
    fabric.set_reads(false);
    exposed.read(&a, 1);
    assert!(a.poll(Cq::Send).is_empty());
    let free = exposed.arena.free();
    b.qp.post(&mut VecDeque::from([Work::Invalidate(exposed.exposure)])).unwrap();
    assert!(matches!(b.poll(Cq::Send)[..], [Completion::Sent { count: 2, .. }]));
    assert!(exposed.arena.free() > free);
    fabric.set_reads(true);
    assert_eq!(a.failures(), [WcStatus::REM_ACCESS_ERR]);
    assert_eq!(exposed.landed()[..], [0xdd; 1000]);
}

#[test]
fn read_from_a_queue_pair_that_has_failed_or_is_gone_fails() {
    for gone in [true, false] {
        let fabric = Fabric::new(1);
        let (a, b) = pair(&fabric);
        let exposed = Exposed::new(&b, &a);
        fabric.set_reads(false);
        exposed.read(&a, 1);
        assert!(a.poll(Cq::Send).is_empty());
        fabric.kill_qp(b.qp.number());
        if gone {
            drop(b);
        }
        fabric.set_reads(true);
        assert_eq!(a.failures(), [WcStatus::RETRY_EXC_ERR]);
        assert_eq!(exposed.landed()[..], [0xdd; 1000]);
    }
}

#[test]
fn queue_pair_with_a_bound_window_is_not_destroyed() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    let exposed = Exposed::new(&b, &a);
    let number = b.qp.number();
    fabric.with(|state| {
        assert_eq!(state.destroy(number), Err(libc::EBUSY));
        state.dealloc_windows(number);
        assert_eq!(state.destroy(number), Ok(()));
    });
    drop(exposed);
}

#[test]
fn device_may_have_few_windows_or_none() {
    let host = Fabric::new(1).host([10, 0, 0, 1].into());
    host.limit_windows(2);
    let (a, b) = (End::new(host.clone()), End::new(host.clone()));
    assert_eq!(a.device.limits().windows, 2);
    a.qp.alloc_windows(1).unwrap();
    assert_eq!(b.qp.alloc_windows(2).unwrap_err().operation, "ibv_alloc_mw");
    drop(a);
    b.qp.alloc_windows(1).unwrap();
    host.limit_windows(0);
    assert_eq!(b.device.limits().windows, 0);
    assert!(b.qp.alloc_windows(1).is_err());
}

#[test]
fn more_reads_than_the_peer_serves_are_refused_and_more_than_allowed_wait() {
    for (allowed, served) in [(2, 2), (3, 2)] {
        let fabric = Fabric::new(1);
        let (a, b) =
            (End::new(fabric.host([10, 0, 0, 1].into())), End::new(fabric.host([10, 0, 0, 2].into())));
        let tuning = QpTuning { reads: allowed, ..QpTuning::new(a.path.status.active_mtu) };
        for (this, that, tuning) in [(&a, &b, tuning), (&b, &a, QpTuning { reads_served: served, ..tuning })]
        {
            this.qp.to_rtr(&this.path, &that.address(), &tuning).unwrap();
            this.qp.to_rts(this.address().psn, &tuning).unwrap();
        }
        let exposed = Exposed::new(&b, &a);
        b.receives(1);
        fabric.set_reads(false);
        (0..3).for_each(|tag| exposed.read(&a, tag));
        a.send(1);
        if allowed > served {
            assert_eq!(a.poll(Cq::Send).len(), 4, "they fail");
            continue;
        }
        assert!(a.poll(Cq::Send).is_empty());
        assert!(b.received().is_empty(), "what is behind a READ that waits waits, too");
        fabric.set_reads(true);
        let tags: Vec<_> = a.poll(Cq::Send);
        assert!(
            matches!(
                tags[..],
                [
                    Completion::Moved { tag: 0, .. },
                    Completion::Moved { tag: 1, .. },
                    Completion::Moved { tag: 2, .. },
                    Completion::Sent { .. }
                ]
            ),
            "{tags:?}"
        );
        assert_eq!(b.received(), [1]);
        assert_eq!(exposed.landed()[..], [8; 1000]);
    }
}
