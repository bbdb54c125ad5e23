"""The Hugging Face engine: see `tunesmith.engines.contract.Engine`."""

from tunesmith.engines.hf.devices import peak_bytes, start
from tunesmith.engines.hf.estimate import estimate
from tunesmith.engines.hf.launch import launch, processes
from tunesmith.engines.hf.session import open_session, open_trainer
from tunesmith.engines.hf.train import train

__all__ = [
    "estimate",
    "launch",
    "open_session",
    "open_trainer",
    "peak_bytes",
    "processes",
    "start",
    "train",
]
