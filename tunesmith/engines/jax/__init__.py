"""The JAX engine: see `tunesmith.engines.contract.Engine`."""

from tunesmith.engines.jax.devices import estimate, launch, peak_bytes, processes, start
from tunesmith.engines.jax.session import open_session, open_trainer
from tunesmith.engines.jax.train import train

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
