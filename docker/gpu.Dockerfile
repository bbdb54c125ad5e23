# The Hugging Face engine on NVIDIA GPUs. From the root of the repository:
#
#   docker build -f docker/gpu.Dockerfile -t tunesmith-gpu .
#
# The build stops if torch has no kernels for a GPU that is to run it; see docs/gpu.md.

# "base" brings the driver's environment and no libraries: torch's wheels have all of CUDA's with
# them, so "runtime" and "devel" would hold everything twice. CUDA 13 needs driver 580 or later.
FROM nvidia/cuda:13.0.3-base-ubuntu24.04

# pipefail: hadolint asks for it; a failing build step must stop the build.
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# A compiler and Python's headers: triton builds the launchers of its kernels when they first run.
# Versions are the release's; Ubuntu keeps no old ones, so an exact pin would break with each fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV PATH=/opt/tunesmith/bin:/usr/local/nvidia/bin:${PATH} \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PIP_CONSTRAINT=/opt/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1

# Dependencies before the sources: a change of code then rebuilds megabytes, not gigabytes. That
# PIP_CONSTRAINT is in the environment pins what builds this package (hatchling) as well.
WORKDIR /opt/src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY tunesmith/__init__.py tunesmith/
RUN python3 -m venv /opt/tunesmith \
    && pip install -c constraints.txt ".[hf,qlora,tensorboard,gke]"

# Architectures that must be able to run the image, e.g. "sm_100" for B200 and "sm_90" for H100.
ARG GPU_ARCHITECTURES="sm_90 sm_100"
COPY docker/check_image.py docker/
RUN python docker/check_image.py ${GPU_ARCHITECTURES}

COPY tunesmith tunesmith
RUN pip install --no-deps --force-reinstall .

# A number, so that Kubernetes can see that it is not root. What is written to is open to all, as
# /tmp is, so that a container may run under the id of whoever owns the mounted folder.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin tunesmith \
    && install -d -m 1777 /cache /workspace
USER 10001:10001

# Models and prepared data lie on the machine's own disk: mount one at /cache to keep them. A bucket
# mounted under /gcs is for reading data; its file system has no safe locks or renames.
# HF_TOKEN is given when a container starts, never while an image is built.
ENV HOME=/home/tunesmith \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    TUNESMITH_CACHE=/cache/tunesmith \
    PYTHONUNBUFFERED=1

WORKDIR /workspace
ENTRYPOINT ["tunesmith"]
CMD ["--help"]
