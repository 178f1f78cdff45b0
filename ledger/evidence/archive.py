"""The container of a bundle: a zip archive of stored members, of which there is exactly one per content.

Any program opens it. Nothing is compressed and every field is fixed, so the same members give the same bytes
on every computer, and a container that differs from what its own members give was changed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from shuffle_ledger.ledger.errors import InvalidValue

CONTAINER_BYTES_MAX = 2**31 - 1
MEMBERS_MAX = 65_000
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_VERSION, _MADE_BY = 20, 20 | 3 << 8  # 2.0, on Unix
_STORED, _FLAGS, _TIME, _DATE = 0, 0, 0, 0x21  # 1980-01-01, the first day a zip archive knows
_MODE = 0o100644 << 16


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """The members of a container, and its defects as a container."""

    members: Mapping[str, bytes]
    problems: tuple[tuple[str | None, str], ...]  # the member concerned, or None, and what


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the container of members, in the order given. Names are ASCII.

    Raises:
        InvalidValue: there are too many, or they are too large.
    """
    size = sum(len(data) + 2 * len(name) + _LOCAL.size + _CENTRAL.size for name, data in members.items())
    if len(members) > MEMBERS_MAX or size > CONTAINER_BYTES_MAX:
        expected = f"at most {MEMBERS_MAX} members of {CONTAINER_BYTES_MAX} bytes together"
        raise InvalidValue(field="bundle", value=f"{len(members)} members of {size} bytes", expected=expected)
    parts, directory, offset = [], [], 0
    for name, data in members.items():
        encoded = name.encode("ascii")
        common = (_FLAGS, _STORED, _TIME, _DATE, zlib.crc32(data), len(data), len(data), len(encoded), 0)
        local = _LOCAL.pack(_LOCAL_MAGIC, _VERSION, *common) + encoded
        parts += [local, data]
        central = _CENTRAL.pack(_CENTRAL_MAGIC, _MADE_BY, _VERSION, *common, 0, 0, 0, _MODE, offset)
        directory.append(central + encoded)
        offset += len(local) + len(data)
    listed = b"".join(directory)
    end = _END.pack(_END_MAGIC, 0, 0, len(members), len(members), len(listed), offset, 0)
    return b"".join([*parts, listed, end])


def unpack(data: bytes) -> Unpacked:
    """Return the members of a container, as far as they can be read, and every way in which it is not one.

    **Guarantee**: without problems, `data` is exactly `pack(members)`.
    """
    if len(data) > CONTAINER_BYTES_MAX:
        return Unpacked(members={}, problems=((None, f"it is larger than {CONTAINER_BYTES_MAX} bytes"),))
    members: dict[str, bytes] = {}
    problems: list[tuple[str | None, str]] = []
    offset = 0
    while data[offset : offset + 4] == _LOCAL_MAGIC and len(members) < MEMBERS_MAX:
        if offset + _LOCAL.size > len(data):
            problems.append((None, f"it ends within a member's header, at byte {offset}"))
            break
        fields = _LOCAL.unpack_from(data, offset)
        checksum, size, length = fields[6], fields[7], fields[9]
        start = offset + _LOCAL.size + length
        name = data[offset + _LOCAL.size : start].decode("ascii", errors="backslashreplace")
        content = data[start : start + size]
        if len(content) != size:
            problems.append((name, f"it is cut off: its header, at byte {offset}, announces {size} bytes"))
        elif name in members:
            problems.append((name, f"it is there twice; the second one begins at byte {offset}"))
        elif zlib.crc32(content) != checksum:
            problems.append((name, f"its content and the checksum in its header, at byte {offset}, differ"))
        members.setdefault(name, content)
        offset = start + size
    if not members:
        problems.append((None, "it does not begin as a zip archive of stored members"))
    return Unpacked(members=members, problems=(*problems, *_differences(data, members, problems)))


def _differences(
    data: bytes, members: Mapping[str, bytes], known: list[tuple[str | None, str]]
) -> list[tuple[str | None, str]]:
    """Return where the container differs from what its members give, unless that is known already."""
    if known:
        return []
    try:
        expected = pack(members)
    except (InvalidValue, UnicodeEncodeError):
        return [(None, "its members have names that no bundle has")]
    if data == expected:
        return []
    place = next((i for i, (a, b) in enumerate(zip(data, expected, strict=False)) if a != b), None)
    if place is None:
        return [(None, f"it has {len(data)} bytes, and its members make {len(expected)}")]
    start = 0
    for name, content in members.items():
        header = _LOCAL.size + len(name)
        if start <= place < start + header:
            return [(name, f"its header in the archive was changed, at byte {place}")]
        start += header + len(content)
    return [(None, f"the directory at the archive's end was changed, at byte {place}")]
