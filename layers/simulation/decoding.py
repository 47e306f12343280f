"""Every text decoded once, although many gates are told it: what comes of it is frozen, and may be everybody's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from contracts.kinds import KINDS
from contracts.mirrors import Job, Node, Pod
from layers.runtime.resources import Decode, decoder_of, decoders

CHECKED = 16
"""One text in so many is decoded anew at the end: nobody may have changed what all share."""


class Remembering:
    """A decoder that decodes each text once. Texts at fault are not remembered."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[bytes, Any] = {}

    def __call__(self, body: bytes | msgspec.Raw) -> Any:
        text = bytes(body)
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._decode(text)
        return known

    def check(self) -> None:
        """Raises AssertionError when an object is no longer what its text says. Looks at one in `CHECKED`."""
        for text in list(self._known)[::CHECKED]:
            assert self._decode(text) == self._known[text], f"was changed in place: {text.decode()}"


@contextmanager
def decoded_once() -> Iterator[None]:
    """Meanwhile no text is decoded twice. Raises AssertionError when somebody has changed what all share."""
    before = dict(decoders)
    kinds: tuple[type[Any], ...] = (*KINDS, Pod, Node, Job)
    shared = {kind: Remembering(decoder_of(kind)) for kind in kinds}
    decoders.update(shared)
    try:
        yield
    finally:
        decoders.clear()
        decoders.update(before)
    for decoder in shared.values():
        decoder.check()
