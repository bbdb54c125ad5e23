"""What stands in TensorBoard's event files, for tests."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_scalars(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every figure, in the order in which TensorBoard reads them."""
    return [
        (value.tag, event.step, value.simple_value)
        for event in read_events(folder)
        for value in event.summary.value
    ]


def read_events(folder: Path) -> Iterator[Any]:
    """The events of all files of a folder.

    A file is a row of TFRecords: length (8 bytes), its checksum (4), the event, its checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
