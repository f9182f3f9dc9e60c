# solar with PyTorch for NVIDIA GPUs. PyTorch's wheels bring CUDA; the driver is the host's, by its container toolkit.
#   docker build -f docker/cuda.Dockerfile -t solar-cuda .
#   docker run --rm --gpus all solar-cuda --help
FROM debian:12.11-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/solar
ENV PATH=/opt/solar/bin:$PATH
COPY constraints.txt /src/
RUN pip install --no-cache-dir --constraint /src/constraints.txt torch triton numpy h5py zstandard
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src \
    && pip install --no-cache-dir --no-deps /wheels/*.whl

FROM debian:12.11-slim
# Triton compiles a launcher for each kernel at its first use: that needs a C compiler and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --create-home --uid 1000 solar
COPY --from=build /opt/solar /opt/solar
ENV PATH=/opt/solar/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /home/solar
HEALTHCHECK --interval=1h --timeout=2m --start-period=2m CMD ["solar", "demo", "--samples", "256"]
ENTRYPOINT ["solar"]
CMD ["--help"]
