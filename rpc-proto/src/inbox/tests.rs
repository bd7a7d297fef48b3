use super::*;

const CALL: u64 = 7;

fn inbox() -> Inbox {
    Inbox::new(Limits { max_message: 64 << 20, max_assembly: 256 << 20 })
}

fn header(inbox: &Inbox, kind: FrameType, flags: u8, len: usize) -> Header {
    Header { seq: inbox.rx_seq() + 1, flags, len: len as u32, ..Header::new(kind, CALL) }
}

/// Begins a message of so many bytes with a few.
fn begin(inbox: &mut Inbox, total: u32) {
    let payload = [&total.to_le_bytes()[..], b"begin"].concat();
    let header = header(inbox, FrameType::REQUEST, flags::FRAGMENTED, payload.len());
    assert_eq!(inbox.take(&header, payload.into()), Ok(Taken::Part));
}

/// Returns the memory for the bytes of the only message.
fn capacity(inbox: &Inbox) -> usize {
    inbox.memory() - assembling::ASSEMBLY
}

/// A peer that says how long its message is, and sends little of it, must not fill memory.
#[test]
fn memory_for_a_message_grows_with_what_has_come_of_it() {
    let mut inbox = inbox();
    let total = 64 << 20;
    begin(&mut inbox, total);
    assert!(capacity(&inbox) <= 4 * 5, "{} bytes for 5", capacity(&inbox));
    let (part, mut have, mut grown, mut before) = (Bytes::from(vec![7; 1 << 20]), 5, 0, 0);
    let whole = loop {
        let part = part.slice(..part.len().min(total as usize - have));
        have += part.len();
        let header = header(&inbox, FrameType::FRAGMENT, 0, part.len());
        match inbox.take(&header, part).unwrap() {
            Taken::Part => {}
            taken => break taken,
        }
        assert!(capacity(&inbox) <= 4 * have, "{} bytes for {have}", capacity(&inbox));
        grown += usize::from(capacity(&inbox) != std::mem::replace(&mut before, capacity(&inbox)));
    };
    let Taken::Message(Arrived { bytes, .. }) = whole else { panic!("{whole:?}") };
    assert_eq!((bytes.len(), &bytes[..6], bytes[bytes.len() - 1]), (64 << 20, &b"begin\x07"[..], 7));
    assert!(grown <= 4, "it was moved {grown} times");
}

/// The buffer that a link reads to follows this rule, too.
#[test]
fn a_lent_buffer_has_room_for_its_fragment_and_little_more() {
    let mut inbox = inbox();
    begin(&mut inbox, 64 << 20);
    let header = header(&inbox, FrameType::FRAGMENT, 0, 100_000);
    let mut buffer = inbox.buffer(&header).unwrap().unwrap();
    let room = buffer.capacity() - buffer.len();
    assert!((100_000..=400_020).contains(&room), "{room} bytes for 100,000");
    buffer.extend_from_slice(&[7; 100_000]);
    assert_eq!(inbox.filled(&header, buffer), Ok(Taken::Part));
    assert_eq!(inbox.partly(CALL).unwrap().have, 100_005);
}

#[test]
fn a_message_without_memory_is_counted_to_its_end_and_lost() {
    for unwanted in [false, true] {
        let mut inbox = inbox();
        inbox.set_room(Room::None);
        begin(&mut inbox, 15);
        if unwanted {
            inbox.cancel(CALL);
        }
        let first = header(&inbox, FrameType::FRAGMENT, 0, 4);
        assert_eq!(inbox.buffer(&first), Ok(None), "a link reads it as any other");
        assert_eq!(inbox.take(&first, Bytes::from_static(b"more")), Ok(Taken::Part));
        let long = header(&inbox, FrameType::FRAGMENT, 0, 7);
        assert!(inbox.buffer(&long).is_err(), "past its end");
        let last = header(&inbox, FrameType::FRAGMENT, 0, 6);
        let lost = Taken::Lost(Lost { kind: FrameType::REQUEST, call: CALL, total: 15 });
        let taken = if unwanted { Taken::Part } else { lost };
        assert_eq!(inbox.take(&last, Bytes::from_static(b"theend")), Ok(taken));
        assert!(!inbox.is_assembling() && inbox.memory() == 0);
    }
}
