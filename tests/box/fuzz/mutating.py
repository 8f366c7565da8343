"""Sessions with parts left out, repeated, moved, cut off, changed or added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

LOGIN: Final = "before login"
SESSION: Final = "after login"
STAGES: Final = (LOGIN, SESSION)
_MOST_MUTATIONS: Final = 4


@dataclass(frozen=True)
class Script:
    """What a client sends, in frames or some of them.

    Attributes:
        login: until the connection is open.
        session: all else; it uses what the broker has.
        octets: such as often change the meaning of a frame.
        draw: makes a frame that fits the protocol's grammar, with any values.
        resized: a frame with another payload, and the size that says so.
    """

    login: Sequence[bytes]
    session: Sequence[bytes]
    octets: Sequence[int]
    draw: Callable[[Random], bytes]
    resized: Callable[[bytes, Callable[[bytes], bytes]], bytes]


def mutated(script: Script, stage: str, chance: Random) -> bytes:
    """One input: the script with one to three mutations of its login or of its session."""
    login, session = list(script.login), list(script.session)
    if stage == LOGIN:
        del session[chance.randrange(6) :]
    parts = login if stage == LOGIN else session
    for _ in range(chance.randrange(1, _MOST_MUTATIONS)):
        if parts:
            _mutate(parts, script, chance)
    return b"".join(login + session)


def pieces(data: bytes, chance: Random) -> list[bytes]:
    """The input as it arrives: whole or in parts."""
    found, at = [], 0
    while at < len(data):
        size = len(data) if chance.random() < 0.5 else chance.randrange(1, 400)
        found.append(data[at : at + size])
        at += size
    return found


def _mutate(parts: list[bytes], script: Script, chance: Random) -> None:
    at, kind = chance.randrange(len(parts)), chance.randrange(8)
    if kind == 0:
        parts.pop(at)
    elif kind == 1:
        parts.insert(at, chance.choice((*script.login, *script.session)))
    elif kind == 2:
        parts[at] = parts[at][: chance.randrange(len(parts[at]) + 1)]
    elif kind == 3:
        parts[at] = script.resized(parts[at], lambda payload: _spliced(payload, chance))
    elif kind <= 5:
        parts[at] = _changed(parts[at], script.octets, chance)
    else:
        parts[at:at] = [script.draw(chance) for _ in range(chance.randrange(1, 4))]


def _changed(part: bytes, octets: Sequence[int], chance: Random) -> bytes:
    data = bytearray(part)
    for _ in range(chance.randrange(1, 4)):
        if data:
            data[chance.randrange(len(data))] = chance.choice((*octets, chance.randrange(256)))
    return bytes(data)


def _spliced(payload: bytes, chance: Random) -> bytes:
    """A payload with some octets left out, or others between them."""
    at = chance.randrange(len(payload) + 1)
    if chance.random() < 0.5:
        return payload[:at] + payload[at + chance.randrange(1, 9) :]
    return payload[:at] + chance.randbytes(chance.randrange(1, 9)) + payload[at:]
