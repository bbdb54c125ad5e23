"""The recipe's part about the cloud. What goes with what is in `tunesmith.cloud.targets`."""

from __future__ import annotations

from typing import Literal

from tunesmith.recipe.section import PositiveFloat, PositiveInt, Section


class CloudSection(Section):
    """Where and how the run goes to a GKE cluster."""

    project: str
    """Google Cloud project."""
    region: str
    """Region of the cluster, bucket and images."""
    zone: str | None = None
    """Zone of the accelerators."""
    cluster: str = "tunesmith"
    """Name of the cluster."""
    mode: Literal["autopilot", "standard"] = "autopilot"
    """Mode of the cluster."""
    machine: str | None = None
    """Machine type, e.g. `ct6e-standard-4t`."""
    topology: str | None = None
    """TPU topology, e.g. `2x4`."""
    slices: PositiveInt = 1
    """Number of TPU slices."""
    capacity: Literal["on_demand", "spot", "reservation", "flex_start"] = "on_demand"
    """How the machines are obtained."""
    reservation: str | None = None
    """Name of the reservation, with `capacity: reservation`."""
    bucket: str | None = None
    """Cloud Storage bucket for data, checkpoints and results."""
    repo: str = "tunesmith"
    """Artifact Registry repository for the image."""
    namespace: str = "default"
    """Kubernetes namespace."""
    service_account: str = "tunesmith"
    """Kubernetes service account of the job."""
    hf_secret: str | None = None
    """Kubernetes secret with the Hugging Face token."""
    image: str | None = None
    """Image to run instead of building one."""
    max_run_hours: PositiveFloat | None = None
    """Stop the job after so many hours."""
    price_per_hour: PositiveFloat | None = None
    """What one accelerator machine costs you an hour, in US dollars; absent: the dated table's."""
