# dsat with PyTorch and DeepSpeed on processors. In the root of the sources, with the wheel there:
#
#   scripts/bundle --wheel
#   docker build -f examples/docker/cpu.Dockerfile -t dsat .
#   docker run --rm --shm-size 1g -v "$PWD:/work" dsat demo
#
# PyPI's torch brings several GB of CUDA libraries. --build-arg PIP_EXTRA_INDEX_URL=... names an
# index with a build without them.
FROM debian:12-slim
ARG PIP_EXTRA_INDEX_URL=
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
