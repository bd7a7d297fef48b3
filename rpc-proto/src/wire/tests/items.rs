//! Several items in one message.

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use super::arbitrary::SEED;
use super::forms::{self, Form};
use crate::payload::{BY_REFERENCE, COPY_OUT, Decoder, Encoder, Payload};
use crate::wire::*;

fn batch(items: &[Payload]) -> Bytes {
    let mut batch = Batch::new(Encoder::new());
    items.iter().for_each(|item| batch.put(item));
    let (head, payload) = batch.finish();
    forms::Item { head, content: Content { metadata: Bytes::new(), payload } }.bytes()
}

fn items(message: Bytes) -> Result<Vec<Payload>, WireError> {
    let (head, content) = ItemHead::decode(message)?;
    let mut items = Items::default();
    items.go_on_in(head, content);
    let mut read = Vec::new();
    while items.advance().transpose()?.is_some() {
        read.push(whole(items.input()));
    }
    Ok(read)
}

/// The rest of the input.
fn whole(input: &mut Decoder) -> Payload {
    let attachments = (0..).map_while(|index| input.attachment(index)).collect();
    Payload::new(input.take_rest(), attachments)
}

#[test]
fn items_that_come_together_are_those_that_were_sent() {
    let mut rng = Rng::with_seed(SEED);
    for count in [1, 2, 3, 100] {
        let sent: Vec<Payload> =
            (0..count).map(|_| forms::Request::random(&mut rng).content.payload).collect();
        let message = batch(&sent);
        assert_eq!(ItemHead::count(&message), Ok(count));
        assert_eq!(items(message), Ok(sent));
    }
}

#[test]
fn an_item_that_does_not_fit_is_taken_off_and_leaves_the_others_as_they_are() {
    let (long, beside) = (Bytes::from(vec![7; BY_REFERENCE + 1]), Bytes::from_static(b"beside"));
    let in_pieces = |out: &mut Encoder| {
        out.put_slice(b"before");
        out.put_bytes(&long);
        out.put_slice(b"behind");
    };
    let with_attachment = |out: &mut Encoder| {
        out.put_slice(b"body");
        out.attach(beside.clone());
    };
    let too_long = |out: &mut Encoder| out.put_slice(&[1; 100]);
    type Case<'a> = (&'a dyn Fn(&mut Encoder), usize);
    let cases: [Case<'_>; 3] = [(&in_pieces, 1 << 20), (&with_attachment, 1 << 20), (&too_long, 100)];
    for (others, (write, most)) in [0, 1, 3].into_iter().flat_map(|others| cases.map(|case| (others, case))) {
        let mut alone = Encoder::new();
        write(&mut alone);
        let mut batch = Batch::new(Encoder::to(BytesMut::new()));
        for _ in 0..others {
            batch.write().put_slice(b"other");
            assert!(batch.keep(most));
        }
        write(batch.write());
        assert!(!batch.keep(most));
        let (taken, alone) = (batch.take_off(), alone.finish());
        assert_eq!(taken.clone().into_parts(), alone.clone().into_parts());
        // Once more, to be dropped this time.
        write(batch.write());
        batch.undo();
        assert_eq!((batch.count(), batch.len()), (others, others as usize * 11));
        batch.put(&taken);
        let (head, payload) = if others == 3 { batch.finish_with(BytesMut::freeze) } else { batch.finish() };
        let content = Content { metadata: Bytes::new(), payload };
        let read = items(forms::Item { head, content }.bytes()).unwrap();
        let (body, attachments) = alone.into_parts();
        assert_eq!(read.len(), others as usize + 1);
        assert!(read[..others as usize].iter().all(|item| *item == Payload::from_body("other".into())));
        assert_eq!(read.last(), Some(&Payload::new(body, attachments)));
    }
}

#[test]
fn parts_of_items_are_what_was_sent_and_pin_little() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..crate::rounds(200) {
        let part = |rng: &mut Rng| {
            let most = [10, 100, COPY_OUT, 5 * COPY_OUT][rng.usize(..4)];
            let mut part = vec![0; rng.usize(1..most)];
            rng.fill(&mut part);
            Bytes::from(part)
        };
        let sent: Vec<Vec<Bytes>> =
            (0..rng.usize(1..100)).map(|_| (0..rng.usize(..4)).map(|_| part(&mut rng)).collect()).collect();
        let whole: Vec<Payload> =
            sent.iter().map(|parts| Payload::from_body(parts.concat().into())).collect();
        let message = batch(&whole);
        let (lies, is_long) = (message.as_ptr_range(), message.len() >= 2 * COPY_OUT);
        let (head, content) = ItemHead::decode(message).unwrap();
        let mut items = Items::default();
        items.go_on_in(head, content);
        for parts in &sent {
            items.advance().unwrap().unwrap();
            for part in parts {
                let read = items.input().take(part.len()).unwrap();
                assert_eq!(&read, part);
                let is_view = lies.contains(&read.as_ptr());
                assert!(!is_long || is_view == (part.len() >= COPY_OUT), "{} bytes", part.len());
                if rng.u8(..) == 0 {
                    // A reader of an item does not have to read all of it.
                    break;
                }
            }
        }
        assert!(items.advance().is_none());
    }
}

#[test]
fn a_short_part_does_not_pin_what_came_beside_it() {
    let sent = Payload::new(Bytes::from_static(b"short"), vec![vec![7; 1 << 20].into()]);
    for count in [1, 2] {
        let message = batch(&vec![sent.clone(); count]);
        let lies = message.as_ptr_range();
        let (head, content) = ItemHead::decode(message).unwrap();
        let mut items = Items::default();
        items.go_on_in(head, content);
        while items.advance().transpose().unwrap().is_some() {
            let part = items.input().take(5).unwrap();
            assert!(part == "short" && !lies.contains(&part.as_ptr()), "{count} items");
        }
    }
}

#[test]
fn items_that_come_together_fill_their_message() {
    let two = batch(&[Payload::from_body("one".into()), Payload::new("two".into(), vec!["beside".into()])]);
    let altered = |at: usize, to: u8| {
        let mut message = two.to_vec();
        message[at] = to;
        items(message.into()).unwrap_err().what
    };
    // Behind 4 bytes of prefix and 9 of lengths come 6 before each item.
    assert_eq!(items(two.clone()).unwrap().len(), 2);
    assert_eq!(altered(0, 2), "item.length", "three items");
    assert_eq!(altered(13, 2), "item.body", "the first is shorter, the second then nonsense");
    assert_eq!(altered(13, 200), "item.body");
    assert_eq!(altered(17, 2), "item.attachments");
    assert_eq!(altered(17, 1), "item.attachments", "the second has none left");
    assert_eq!(altered(26, 0), "item", "nobody has it");
    assert_eq!(altered(22, 2), "item", "a byte is left");
}
