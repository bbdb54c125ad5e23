"""Says whether the torch in an image has kernels for the GPUs that are to run it.

    python docker/check_image.py sm_90 sm_100

Exit status 0 if it has, 1 with the reason if not, 2 for a name that is no architecture. Needs no
GPU, so it runs while an image is built: without it a wrong torch shows itself as "no kernel image
is available for execution on the device" when the first layer runs on a machine paid by the hour.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(target: str, built: str) -> bool:
    """Whether code built for one architecture runs on the GPU of another.

    By the CUDA C++ Programming Guide, "Compute capability" and "Feature set compiler targets":
    machine code (sm_) runs on its own major version, from its minor version on; with the suffix
    `f` (family) as well; with `a` on the very same architecture alone. Intermediate code (compute_)
    could be translated for any later GPU, but counts here only within a major version: beyond it
    the libraries that came with it (cuBLAS, cuDNN, NCCL) do not know the GPU.

    Args:
        target: e.g. `sm_100`.
        built: an entry of torch's list, e.g. `sm_90a` or `compute_120`.

    Raises:
        ValueError: one of them is no architecture.
    """
    _, major, minor, suffix = _parse(built)
    kind, target_major, target_minor, target_suffix = _parse(target)
    if kind != "sm" or target_suffix:
        raise ValueError(f"{target!r} names no GPU")
    if suffix == "a":
        return (major, minor) == (target_major, target_minor)
    return major == target_major and minor <= target_minor


def built_architectures() -> Sequence[str]:
    """What the installed torch was built for; empty for a torch without CUDA."""
    import torch

    # torch.cuda.get_arch_list() is empty where there is no GPU; what it reads is not.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags else []


def main(targets: Sequence[str], built: Sequence[str], torch_version: str) -> int:
    """Prints what was found and returns the exit status."""
    try:
        found = {target: [b for b in built if runs_on(target, b)] for target in targets}
    except ValueError as error:
        print(f"{error}; name GPUs like sm_90 (H100, H200) or sm_100 (B200)", file=sys.stderr)
        return 2
    if not targets:
        print("name the GPUs that are to run the image, like sm_90 or sm_100", file=sys.stderr)
        return 2
    print(f"torch {torch_version} was built for {' '.join(built) or 'no GPU'}")
    for target, fitting in found.items():
        print(f"{target}: {' '.join(fitting) or 'nothing runs there'}")
    missing = [target for target, fitting in found.items() if not fitting]
    if missing:
        print(
            f"This image cannot run on {' and '.join(missing)}. Pin a torch in constraints.txt "
            "that is built for it, or build for other GPUs: --build-arg GPU_ARCHITECTURES=...",
            file=sys.stderr,
        )
    return 1 if missing else 0


def _parse(name: str) -> tuple[str, int, int, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no GPU architecture")
    return match[1], int(match[2]), int(match[3]), match[4]


if __name__ == "__main__":
    import torch

    sys.exit(main(sys.argv[1:], built_architectures(), torch.__version__))
