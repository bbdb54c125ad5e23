"""TensorBoard's event files, made from the lines of metrics.jsonl: the same tags for every engine.

    train/loss, train/learning_rate, train/grad_norm, train/tokens_per_second
    eval/loss, eval/execution_accuracy, eval/exact_match

They hold nothing that metrics.jsonl does not, so a run that goes on writes them anew from there. No
step stands in them twice, whichever lines of the process before had reached the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.errors import UserError

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

_TAGS = {
    "train": ("loss", "learning_rate", "grad_norm"),
    "eval": ("loss", "execution_accuracy", "exact_match"),
}
_FLUSH_SECONDS = 10


class EventFiles:
    """The event files of one folder.

    Args:
        folder: theirs alone; made with the first record.

    Raises:
        UserError: the package that writes them is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ModuleNotFoundError as error:
            raise UserError(
                f"run.tensorboard needs the package {error.name}",
                "Install it with: pip install 'tunesmith[tensorboard]'",
            ) from error
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl; what is null in it is left out."""
        if self._writer is None:
            self._writer = self._open()
        for tag, value in _scalars(record):
            self._writer.add_scalar(tag, value, record["step"], record["time"])

    def restart(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the files anew from these lines."""
        self.close()
        for old in self._folder.glob("events.out.tfevents.*"):
            old.write_bytes(b"")  # removed, it would stall a TensorBoard that is looking on
        for record in records:
            self.add(record)

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> SummaryWriter:
        from tensorboardX import SummaryWriter

        # A TensorBoard that is looking on forgets, at this step, what it read from older files.
        return SummaryWriter(str(self._folder), purge_step=0, flush_secs=_FLUSH_SECONDS)


def _scalars(record: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    kind, tokens, seconds = record["kind"], record["tokens"], record["step_seconds"]
    for name in _TAGS[kind]:
        if record.get(name) is not None:
            yield f"{kind}/{name}", record[name]
    if tokens and seconds:
        yield f"{kind}/tokens_per_second", tokens / seconds
