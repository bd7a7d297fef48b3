//! The data by which two ends connect their queue pairs: the data of OFFER and ANSWER, and that of HELLO.

use bytes::{BufMut, Bytes, BytesMut};
use farcall_core::proto::message::MIN_PAYLOAD;
use farcall_core::proto::wire::{HEADER_LEN, Reader, WireError};
use farcall_core::transport::TAG_LEN;

use crate::device::{Gid, GidKind, Mtu, RemoteAddress, RemoteQp};

/// The version of this layout. Later ones append fields; an end that does not know them skips them.
const VERSION: u8 = 1;

/// The least that a receive must hold, header included. The tag of a sealed message comes on top.
const MIN_SLOT: u32 = (HEADER_LEN + MIN_PAYLOAD) as u32;

/// One end of a link, as it tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bootstrap {
    /// Where to send to.
    pub(crate) qp: RemoteQp,
    /// The active MTU of its port.
    pub(crate) mtu: Mtu,
    /// How long a frame may be, header included.
    pub(crate) slot: u32,
    /// How many frames may be sent to it at first.
    pub(crate) grant: u32,
    /// READs that it may have outstanding; zero if it reads nothing.
    pub(crate) reads: u8,
    /// READs of the peer that it serves at a time; zero if it lets nothing be read.
    pub(crate) reads_served: u8,
    /// How what is sent may be protected, in OFFER, or is, in ANSWER: [`PLAINTEXT`] or a [`Cipher`]'s bit.
    pub(crate) protection: u8,
    /// OFFER: which address of the server's the link is to leave from. `None`: the server chooses.
    pub(crate) wanted: Option<Gid>,
}

/// The bit of a link that sends bytes as they are. A peer that says nothing knows no other.
pub(crate) const PLAINTEXT: u8 = 0x01;

impl Bootstrap {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u8(VERSION);
        out.put_u8(self.mtu.code());
        out.put_u16_le(self.qp.lid);
        out.put_u32_le(self.qp.qp_num);
        out.put_u32_le(self.qp.psn);
        out.put_u32_le(self.slot);
        out.put_u32_le(self.grant);
        out.put_slice(&self.qp.gid.0);
        out.put_u8(self.reads);
        out.put_u8(self.reads_served);
        out.put_u8(self.protection);
        out.put_slice(&self.wanted.unwrap_or(NO_ADDRESS).0);
        out.freeze()
    }

    /// Decodes the peer's data. `Err` names the fault.
    pub(crate) fn decode(data: Bytes) -> Result<Self, String> {
        let fields = Fields::read(data).map_err(|error| error.to_string())?;
        if fields.version < VERSION {
            return Err(format!("its version of RDMA set-up is {}, which does not exist", fields.version));
        }
        let mtu =
            Mtu::from_code(fields.mtu).ok_or_else(|| format!("its path MTU has the code {}", fields.mtu))?;
        let Fields { qp_num, psn, slot, grant, reads, reads_served, protection, wanted, .. } = fields;
        let qp = RemoteQp { qp_num, psn, gid: Gid(fields.gid), lid: fields.lid }.check()?;
        let overhead = if protection == PLAINTEXT { 0 } else { TAG_LEN as u32 };
        if slot < MIN_SLOT + overhead || grant == 0 {
            return Err(format!("it has {grant} receives of {slot} bytes"));
        }
        Ok(Self { qp, mtu, slot, grant, reads, reads_served, protection, wanted })
    }

    /// The longest payload of a frame to that end, if every message carries so many bytes besides.
    pub(crate) fn max_frame(&self, overhead: usize) -> usize {
        (self.slot as usize).saturating_sub(HEADER_LEN + overhead)
    }
}

/// The fields as they stand in the data.
struct Fields {
    version: u8,
    mtu: u8,
    lid: u16,
    qp_num: u32,
    psn: u32,
    slot: u32,
    grant: u32,
    gid: [u8; 16],
    reads: u8,
    reads_served: u8,
    protection: u8,
    wanted: Option<Gid>,
}

impl Fields {
    fn read(data: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(data);
        Ok(Self {
            version: r.u8("rdma.version")?,
            mtu: r.u8("rdma.mtu")?,
            lid: r.u16("rdma.lid")?,
            qp_num: r.u32("rdma.qp")?,
            psn: r.u32("rdma.psn")?,
            slot: r.u32("rdma.slot")?,
            grant: r.u32("rdma.grant")?,
            gid: gid(&mut r)?.0,
            reads: r.u8("rdma.reads")?,
            reads_served: r.u8("rdma.reads_served")?,
            protection: if r.remaining() == 0 { PLAINTEXT } else { r.u8("rdma.protection")? },
            wanted: match r.remaining() < size_of::<Gid>() {
                true => None,
                false => Some(gid(&mut r)?).filter(|wanted| *wanted != NO_ADDRESS),
            },
        })
    }
}

fn gid(r: &mut Reader) -> Result<Gid, WireError> {
    let gid = u128::from(r.u64("rdma.gid")?) | u128::from(r.u64("rdma.gid")?) << 64;
    Ok(Gid(gid.to_le_bytes()))
}

/// Stands where no address is wanted.
const NO_ADDRESS: Gid = Gid([0; 16]);

/// The most addresses that are announced.
const MOST_ADDRESSES: usize = 16;

/// Returns the data of HELLO: the addresses that links may leave from, the best first.
pub(crate) fn announcement(addresses: &[RemoteAddress]) -> Bytes {
    let addresses = &addresses[..addresses.len().min(MOST_ADDRESSES)];
    let mut out = BytesMut::from(&[VERSION, addresses.len() as u8][..]);
    for address in addresses {
        out.put_u8(address.kind.code());
        out.put_u8(address.prefix);
        out.put_slice(&address.gid.0);
    }
    out.freeze()
}

/// Returns the addresses in a peer's HELLO, without kinds of later versions. Empty if the peer sends none, as earlier versions do, or
/// they cannot be read.
pub(crate) fn announced(data: Bytes) -> Vec<RemoteAddress> {
    read_announced(data).unwrap_or_default()
}

fn read_announced(data: Bytes) -> Result<Vec<RemoteAddress>, WireError> {
    let mut r = Reader::new(data);
    let _version = r.u8("rdma.version")?;
    let count = if r.remaining() == 0 { 0 } else { usize::from(r.u8("rdma.addresses")?) };
    let mut addresses = Vec::new();
    for _ in 0..count.min(MOST_ADDRESSES) {
        let (kind, prefix) = (r.u8("rdma.kind")?, r.u8("rdma.prefix")?);
        let gid = gid(&mut r)?;
        if let Some(kind) = GidKind::from_code(kind) {
            addresses.push(RemoteAddress { gid, kind, prefix: prefix.min(128) });
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Bootstrap {
        let gid = Gid(*b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x63\0\x01");
        let qp = RemoteQp { qp_num: 0x11, psn: 0xabcdef, gid, lid: 0x203 };
        Bootstrap {
            qp,
            mtu: Mtu::from_code(5).unwrap(),
            slot: 8192,
            grant: 64,
            reads: 16,
            reads_served: 8,
            protection: 3,
            wanted: None,
        }
    }

    #[test]
    fn a_client_names_the_address_that_it_wants() {
        let wanted = Bootstrap { wanted: Some(Gid([7; 16])), ..example() };
        assert_eq!(Bootstrap::decode(wanted.encode()).unwrap(), wanted);
        assert_eq!(wanted.encode()[..39], example().encode()[..39]);
    }

    #[test]
    fn addresses_are_announced() {
        let address = |kind, byte| RemoteAddress { gid: Gid([byte; 16]), kind, prefix: 120 };
        let all = [address(GidKind::RoceV2Ipv4, 1), address(GidKind::InfiniBand, 2)];
        let data = announcement(&all);
        assert_eq!(data[..6], [1, 2, 1, 120, 1, 1]);
        assert_eq!(announced(data.clone()), all);
        // Earlier versions say nothing of addresses; nonsense is worth as much.
        assert!(announced(Bytes::from_static(&[1])).is_empty() && announced(data.slice(..20)).is_empty());
        // A kind of a later version.
        let mut later = BytesMut::from(&data[..]);
        later[2] = 77;
        assert_eq!(announced(later.freeze()), all[1..]);
        assert_eq!(announced(announcement(&[all[0]; 40])).len(), MOST_ADDRESSES);
    }

    #[test]
    fn layout_is_fixed() {
        let expected = [
            1, 5, 0x03, 0x02, // version, MTU of 4096, LID
            0x11, 0, 0, 0, 0xef, 0xcd, 0xab, 0, // queue pair, first packet
            0, 0x20, 0, 0, 64, 0, 0, 0, // slot, grant
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 0, 1, // ::ffff:10.99.0.1
            16, 8, // READs asked, served
            3, // plaintext or AES-256-GCM
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // wants no address
        ];
        assert_eq!(example().encode()[..], expected);
        assert_eq!(Bootstrap::decode(Bytes::copy_from_slice(&expected)).unwrap(), example());
    }

    #[test]
    fn later_versions_append() {
        let mut data = BytesMut::from(&example().encode()[..]);
        data[0] = 2;
        data.put_slice(b"more");
        assert_eq!(Bootstrap::decode(data.freeze()).unwrap(), example());
    }

    #[test]
    fn peer_that_says_nothing_of_protection_has_none() {
        let data = example().encode();
        assert_eq!(Bootstrap::decode(data.slice(..38)).unwrap().protection, PLAINTEXT);
        assert_eq!(Bootstrap::decode(data.slice(..39)).unwrap(), example());
    }

    #[test]
    fn nonsense_is_refused() {
        let good = example().encode();
        for len in 0..38 {
            assert!(Bootstrap::decode(good.slice(..len)).is_err(), "{len} bytes");
        }
        // Version 0, no MTU, an MTU of 6, a queue pair of 32 bits, a packet of 32 bits, a slot of 992, no grant.
        for (at, byte) in [(0, 0), (1, 0), (1, 6), (7, 1), (11, 1), (13, 3), (16, 0)] {
            let mut bad = BytesMut::from(&good[..]);
            bad[at] = byte;
            assert!(Bootstrap::decode(bad.freeze()).is_err(), "byte {at} is {byte}");
        }
    }
}
