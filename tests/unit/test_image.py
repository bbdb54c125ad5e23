"""The GPU image: what its Dockerfile installs, and the check of its torch. No Docker is needed."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GPU = ROOT / "docker" / "gpu.Dockerfile"

_spec = importlib.util.spec_from_file_location("check_image", ROOT / "docker" / "check_image.py")
assert _spec is not None
assert _spec.loader is not None
check_image = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_image)

# What torch 2.14.1 from PyPI (CUDA 13.0) was built for, as the check found it.
TORCH = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120".split()
# torch 2.4 (CUDA 12.4), older than the B200.
OLD_TORCH = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90".split()


def instructions(path: Path = GPU) -> list[tuple[str, str]]:
    """Instruction and arguments of each step, continuation lines joined."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [
        (step.split(" ", 1)[0], step.split(" ", 1)[1]) for step in text.splitlines() if step.strip()
    ]


def of(instruction: str) -> list[str]:
    return [arguments for name, arguments in instructions() if name == instruction]


def package(requirement: str) -> str:
    return re.sub(r"[._]", "-", re.split(r"[\[<>=;~! ]", requirement)[0].lower())


def requirements(extras: set[str]) -> set[str]:
    """What the package with these extras asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {package(requirement) for requirement in project["dependencies"]}
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            if package(requirement) == "tunesmith":
                (inner,) = re.findall(r"\[(.+)\]", requirement)
                names |= requirements(set(inner.split(",")))
            else:
                names.add(package(requirement))
    return names


def test_base_image_is_pinned_by_version() -> None:
    assert len(of("FROM")) == 1
    for image in of("FROM"):
        assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-base-ubuntu\d\d\.\d\d", image)


def test_only_pinned_python_packages_are_installed() -> None:
    installs = [part for run in of("RUN") for part in run.split("&&") if "pip install" in part]
    first, second = (install.split("pip install", 1)[1].split() for install in installs)
    assert first[:2] == ["-c", "constraints.txt"]
    assert second == ["--no-deps", "--force-reinstall", "."]

    extras = re.fullmatch(r'"\.\[(.+)\]"', first[2])
    assert extras is not None
    assert first[3:] == []
    asked = requirements(set(extras[1].split(",")))
    assert {"torch", "trl", "bitsandbytes", "gcsfs"} <= asked
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0] for line in constraints if "==" in line}
    assert asked - pinned == set()
    # What builds the package is installed too, in an environment of its own.
    assert "hatchling" in pinned
    assert any("PIP_CONSTRAINT=/opt/src/constraints.txt" in env for env in of("ENV"))


def test_nothing_is_fetched_in_another_way() -> None:
    assert of("ADD") == []
    for run in of("RUN"):
        assert not re.search(r"\b(curl|wget|git|npm|conda|uv)\b|https?://", run)


def test_container_does_not_run_as_root() -> None:
    """By number, for Kubernetes' `runAsNonRoot`, and nothing changes the user again."""
    (user,) = of("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    names = [name for name, _ in instructions()]
    assert "RUN" not in names[names.index("USER") :]


def test_container_is_tunesmith() -> None:
    assert of("ENTRYPOINT") == ['["tunesmith"]']


def test_image_holds_no_token_and_asks_for_none() -> None:
    assert not [a for name, a in instructions() if name in ("ARG", "ENV") and "TOKEN" in a]


def test_build_checks_torch_for_the_gpus_named() -> None:
    """G42: behind the installation of torch, for the B200 unless told otherwise."""
    steps = [f"{name} {arguments}" for name, arguments in instructions()]
    check = steps.index("RUN python docker/check_image.py ${GPU_ARCHITECTURES}")
    assert check > next(at for at, step in enumerate(steps) if "pip install" in step)
    (argument,) = of("ARG")
    name, _, value = argument.partition("=")
    assert name == "GPU_ARCHITECTURES"
    assert "sm_100" in value.strip('"').split()
    assert check_image.main(value.strip('"').split(), TORCH, "2.14.1") == 0


def test_builder_gets_what_is_copied_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_through = [rule[1:] for rule in rules if rule.startswith("!")]
    sources = {source for copy in of("COPY") for source in copy.split()[:-1]}
    for source in sources:
        assert (ROOT / source).exists()
        assert any(
            fnmatch.fnmatch(source, rule) or source.startswith(f"{rule}/") for rule in let_through
        ), source
    assert not any(rule in ("runs", "tests", ".git", "*", "docker") for rule in let_through)


@pytest.mark.parametrize(
    ("target", "built", "runs"),
    [
        ("sm_100", "sm_100", True),
        ("sm_100", "sm_100a", True),
        ("sm_100", "sm_100f", True),
        ("sm_100", "compute_100", True),
        ("sm_100", "compute_100a", True),
        ("sm_100", "compute_100f", True),
        # The B300 runs the B200's code, but not what is for the B200 alone.
        ("sm_103", "sm_100", True),
        ("sm_103", "sm_100f", True),
        ("sm_103", "compute_100", True),
        ("sm_103", "sm_100a", False),
        ("sm_103", "compute_100a", False),
        # Nothing runs on an older GPU.
        ("sm_100", "sm_103", False),
        ("sm_100", "compute_103", False),
        ("sm_100", "sm_103f", False),
        # Another generation: machine code never, intermediate code without its libraries.
        ("sm_100", "sm_90", False),
        ("sm_100", "sm_90a", False),
        ("sm_100", "compute_90", False),
        ("sm_100", "sm_120", False),
        ("sm_90", "sm_90", True),
        ("sm_90", "sm_90a", True),
        ("sm_90", "sm_100", False),
        ("sm_89", "sm_86", True),
        ("sm_89", "sm_80", True),
        ("sm_80", "sm_86", False),
        ("sm_121", "sm_120", True),
    ],
)
def test_what_runs_where(target: str, built: str, runs: bool) -> None:
    """G42."""
    assert check_image.runs_on(target, built) is runs


def test_torch_without_the_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """G42: both lists are shown, and what to do."""
    assert check_image.main(["sm_90", "sm_100"], OLD_TORCH, "2.4.1") == 1
    told = capsys.readouterr()
    assert "torch 2.4.1 was built for sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90" in told.out
    assert "sm_90: sm_90" in told.out
    assert "sm_100: nothing runs there" in told.out
    assert "This image cannot run on sm_100." in told.err
    assert "constraints.txt" in told.err


def test_torch_for_cpus_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_image.main(["sm_100"], [], "2.14.1+cpu") == 1
    assert "was built for no GPU" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["b200", "sm_100a", "compute_100", "100", ""])
def test_name_that_is_no_gpu_is_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_image.main([target], TORCH, "2.14.1") == 2
    assert "sm_100 (B200)" in capsys.readouterr().err


def test_no_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty build argument must not pass as a check."""
    assert check_image.main([], TORCH, "2.14.1") == 2
    assert "name the GPUs" in capsys.readouterr().err


@pytest.mark.parity
def test_built_architectures_are_told_without_a_gpu() -> None:
    """torch.cuda.get_arch_list() is empty on a machine without a GPU, where images are built."""
    torch = pytest.importorskip("torch")
    built = check_image.built_architectures()
    assert (built != []) == (torch.version.cuda is not None)
    for name in built:
        check_image.runs_on("sm_100", name)  # every name is understood
