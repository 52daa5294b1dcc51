"""The reply to the usual query, as fast as Python allows: what the UDP loop calls for every packet.

It knows the few forms that nearly all queries have and reads nothing else in the packet; everything unusual goes to
`reply.respond`. For the same query both send the same bytes. A name that is found is a name that was written here, so
only names that are not found are looked at label by label.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from zonewise.dns.message import IN, PLAIN_UDP_BYTES, Rcode, Type
from zonewise.dns.names import LONGEST_LABEL, LONGEST_NAME
from zonewise.dns.reply import OPT_HEAD, OUR_UDP_BYTES, Sender, opt_record, respond, truncated
from zonewise.dns.table import POSITIONS, Choices, Headers, Table

_FORMS: Final = {
    bytes(flags) + struct.pack(">HHHH", 1, 0, 0, edns): edns * 2 + (flags[0] & 1)
    for flags in ((1, 0), (0, 0), (1, 0x20), (0, 0x20), (1, 0x10), (1, 0x30))
    for edns in (0, 1)
}
"""A standard query with one question and at most one additional record, as bytes 2 to 12 have it: which header fits."""

_KINDS: Final = {struct.pack(">HH", type_, IN): position for type_, position in POSITIONS.items()}
_OPTS: Final = {struct.pack(">BBHH", 0, 0, flags, 0): opt_record(bool(flags)) + b"\0\0" for flags in (0, 0x8000)}
"""What follows the size in an OPT record without options, and the record to send back."""

_OF_INTERNET: Final = struct.pack(">H", IN)


@dataclass(slots=True)
class Tally:
    """What is counted beside the queries themselves, which the loop counts by client."""

    nxdomain: int = 0
    nodata: int = 0
    near: int = 0
    far: int = 0
    careful: int = 0
    elsewhere: int = 0


QuickResponder = Callable[[bytes, Sender], bytes | None]
"""The reply, empty for silence, or None for what is somebody else's."""


def quick_responder(table: Table, tally: Tally, largest: int = OUR_UDP_BYTES) -> QuickResponder:  # noqa: PLR0915
    """One flat function and what it seldom needs: a call costs more here than most of what it would do."""
    names_get, forms_get, kinds_get, opts_get = table.names.get, _FORMS.get, _KINDS.get, _OPTS.get
    no_data, no_name = table.headers(Rcode.NOERROR, 0, 1), table.headers(Rcode.NXDOMAIN, 0, 1)
    turn = 0

    def careful(packet: bytes, sender: Sender) -> bytes | None:
        tally.careful += 1
        found = respond(table, packet, sender, largest, turn)
        if isinstance(found, bytes):
            return found
        tally.elsewhere += 1
        return None

    def deny(packet: bytes, form: int, end: int, room: int, opt: bytes, headers: Headers) -> bytes:
        authority = table.authority
        if end + len(authority) + len(opt) > room or not authority:
            headers, authority = _without_authority(headers), b""
        return packet[:2] + headers[form] + packet[12:end] + authority + opt

    def missing(packet: bytes, sender: Sender, name: bytes, form: int, end: int, room: int, opt: bytes) -> bytes | None:
        """Most of these come from search paths. Whatever asks for more than a denial is read with care."""
        at, last = 0, len(name) - 1
        begin = len(name) - len(table.domain)
        ours = False
        while at < last:
            length = name[at]
            if length > LONGEST_LABEL:
                return careful(packet, sender)
            at += length + 1
            if at == begin:
                ours = name.endswith(table.domain)
        special = not ours or b"\x05_zone" in name or table.namespaces_of_pods or not table.loaded
        kind = packet[end - 4 : end]
        if at != last or special or last >= LONGEST_NAME or kind[2:] != _OF_INTERNET or kind[0] or kind[1] >= Type.IXFR:
            return careful(packet, sender)
        tally.nxdomain += 1
        return deny(packet, form, end, room, opt, no_name)

    def shortened(
        packet: bytes, form: int, end: int, room: int, opt: bytes, headers: Headers, records: bytes, stride: int
    ) -> bytes:
        free = room - end - len(opt)
        if len(records) <= free:
            bare = table.headers(Rcode.NOERROR, int.from_bytes(headers[0][4:6]))
            return packet[:2] + bare[form] + packet[12:end] + records + opt
        fits = free // stride if stride else 0
        head = truncated(table.headers(Rcode.NOERROR, fits)[form])
        return packet[:2] + head + packet[12:end] + records[: fits * stride] + opt

    def respond_quickly(packet: bytes, sender: Sender) -> bytes | None:
        nonlocal turn
        form = forms_get(packet[2:12])
        if form is None:
            return careful(packet, sender)
        end = packet.find(b"\0", 12) + 5
        if form > 1:
            opt = opts_get(packet[end + 5 :])
            if opt is None or packet[end : end + 3] != OPT_HEAD:
                return careful(packet, sender)
            room = packet[end + 3] << 8 | packet[end + 4]
            if room > largest:
                room = largest
            elif room < PLAIN_UDP_BYTES:
                room = PLAIN_UDP_BYTES
        elif len(packet) == end:
            opt, room = b"", PLAIN_UDP_BYTES
        else:
            return careful(packet, sender)
        name = packet[12 : end - 4].lower()
        entry = names_get(name)
        if type(entry) is bytes:
            entry = table.read(name)
        if entry is None:
            return missing(packet, sender, name, form, end, room, opt)
        assert type(entry) is tuple
        position = kinds_get(packet[end - 4 : end])
        if position is None:
            return careful(packet, sender)
        slot = entry[position]
        if slot is None:
            if entry[4]:
                return careful(packet, sender)
            tally.nodata += 1
            return deny(packet, form, end, room, opt, no_data)
        headers, records, stride, glue, further = slot
        if further is not None:
            if type(further) is not Choices:
                return careful(packet, sender)
            group = further.groups.get(sender.node, 0)
            slot = further.slots[group]
            if further.near[group]:
                tally.near += 1
            else:
                tally.far += 1
            if slot is None:
                tally.nodata += 1
                return deny(packet, form, end, room, opt, no_data)
            headers, records, stride, glue, _ = slot
        assert headers is not None
        if stride:
            turn += 1
            cut = turn * stride % len(records)
            records = records[cut:] + records[:cut]
        reply = packet[:2] + headers[form] + packet[12:end] + records + glue + opt
        if len(reply) <= room:
            return reply
        return shortened(packet, form, end, room, opt, headers, records, stride)

    return respond_quickly


def _without_authority(headers: Headers) -> Headers:
    first, second, third, fourth = (each[:6] + b"\0\0" + each[8:] for each in headers)
    return first, second, third, fourth


def ask_over_tcp(packet: bytes) -> bytes:
    """To a client that asks too much: a reply no larger than its query, which an honest client repeats over TCP."""
    end = packet.find(b"\0", 12) + 5
    if packet[2:12] not in _FORMS or not 16 < end <= len(packet):
        return b""
    return packet[:2] + bytes((0x86 | packet[2] & 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + packet[12:end]
