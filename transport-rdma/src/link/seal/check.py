"""Checks seals by another implementation than farcall's: HKDF and ciphers of Python's `cryptography`.

Standard input has one seal a line: cipher, sender (0 client, 1 server), use (0 messages, 1 chunks), number, text, sealed text.
They are of a session that exports 32 bytes of 7, an attempt of epoch 3, and an OFFER and ANSWER with the data `offer` and
`answer`. The argument is WIRE.md, whose vectors are checked as well. Prints how many agree; the exit status is 1 if one does not.
"""

import struct
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

CIPHERS = {
    "AES-256-GCM": (AESGCM, hashes.SHA384),
    "ChaCha20-Poly1305": (ChaCha20Poly1305, hashes.SHA256),
}


def open_text(cipher, exported, info, number, sealed):
    aead, digest = CIPHERS[cipher]
    material = HKDF(algorithm=digest(), length=44, salt=None, info=info).derive(exported)
    key, iv = material[:32], material[32:]
    nonce = bytes(a ^ b for a, b in zip(iv, struct.pack(">4xQ", number)))
    return aead(key).decrypt(nonce, sealed, None)


def info_of(sender, use, epoch, offer, answer, key):
    data = b"".join(struct.pack("<H", len(part)) + part for part in (offer, answer))
    return b"farcall/1 rdma" + struct.pack("<BBI", sender, use, epoch) + data + struct.pack("<Q", key)


def unhex(text):
    return bytes.fromhex("" if text == "-" else text)


def check(what, cipher, exported, info, number, text, sealed):
    try:
        agrees = open_text(cipher, exported, info, number, sealed) == text
    except Exception as error:  # `cryptography` raises InvalidTag, without words.
        agrees = False
        print(f"{error!r}")
    if not agrees:
        print(f"does not agree: {what}")
        sys.exit(1)


def main():
    count = 0
    for line in sys.stdin:
        cipher, sender, use, number, text, sealed = line.split()
        info = info_of(int(sender), int(use), 3, b"offer", b"answer", int(number) >> 20)
        check(line, cipher, bytes([7] * 32), info, int(number), unhex(text), unhex(sealed))
        count += 1
    with open(sys.argv[1], encoding="utf-8") as document:
        blocks = document.read().split("```seal ")[1:]
    for block in blocks:
        cipher, *lines = block.split("```")[0].strip().splitlines()
        fields = {}
        for line in lines:
            name, _, value = line.split(";")[0].partition(" ")
            fields[name] = fields.get(name, b"") + unhex(value.strip() or "-")
        number = struct.unpack("<Q", fields["number"])[0]
        check(block, cipher, fields["exported"], fields["info"], number, fields["text"], fields["sealed"])
        count += 1
    print(f"{count} agree")


main()
