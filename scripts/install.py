"""Installs this folder with the named extras into the Python that runs it.

    .venv/bin/python scripts/install.py demo,dev

One call of pip, at the versions in constraints.txt. pip's output goes to .venv/install.log, and
its last lines to the terminal if it fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install"]


def main(extras: str) -> int:
    """Returns pip's exit status."""
    log = Path(sys.prefix, "install.log")
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"Installing tunesmith[{extras}] for Python {python} ...", flush=True)
    start = time.monotonic()
    command = [sys.executable, *PIP, "-c", "constraints.txt", "-e", f".[{extras}]"]
    packages = 0
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            out.write(line)
            if line.startswith(("Collecting ", "Processing ")):  # from an index, from a disk
                packages += 1
                _progress(f"  {packages} packages found", last=False)
            elif line.startswith("Installing collected packages"):
                _progress(f"  {packages} packages found, unpacking them ...", last=True)
    if pip.returncode:
        print(f"\npip failed; the end of {log}:\n", file=sys.stderr)
        print("\n".join(log.read_text("utf-8").splitlines()[-25:]), file=sys.stderr)
        return pip.returncode
    print(f"Installed in {time.monotonic() - start:.0f} s.", flush=True)
    if sys.version_info < (3, 12) and _cpu_has_amx():
        print(
            "Note: JAX's last release for Python 3.11 does not use this processor's matrix unit "
            "(AMX);\ntraining is several times faster with Python 3.12 or 3.13: install one, then "
            "`make clean`."
        )
    return 0


def _progress(text: str, *, last: bool) -> None:
    """One line that is written over; where nobody watches, its last state alone."""
    if sys.stdout.isatty():
        print(f"\r{text}", end="\n" if last else "", flush=True)
    elif last:
        print(text, flush=True)


def _cpu_has_amx() -> bool:
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:  # pip got it too; the next `make` installs again
        sys.exit(130)
