# dsat with PyTorch and DeepSpeed on NVIDIA GPUs. In the root of the sources, with the wheel there:
#
#   scripts/bundle --wheel
#   docker build -f examples/docker/cuda.Dockerfile -t dsat-cuda .
#   docker run --rm --gpus all --shm-size 16g -v "$PWD:/work" dsat-cuda doctor
#
# The image has nvcc, with which DeepSpeed compiles its operators. BASE names that of your driver.
ARG BASE=nvidia/cuda:12.8.1-devel-ubuntu22.04
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends \
    g++ openssh-client python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/dsat
ENV PATH=/opt/dsat/bin:$PATH
RUN pip install --no-cache-dir torch numpy setuptools wheel ninja && \
    DS_BUILD_OPS=0 pip install --no-cache-dir --no-build-isolation deepspeed transformers accelerate
COPY dsat_autotune-*.whl /tmp/
RUN pip install --no-cache-dir /tmp/dsat_autotune-*.whl && dsat doctor
WORKDIR /work
ENTRYPOINT ["dsat"]
