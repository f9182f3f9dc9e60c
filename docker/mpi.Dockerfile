# solar with Open MPI and parallel HDF5: ranks by mpiexec, and H5Dataset(reader="mpio").
#   docker build -f docker/mpi.Dockerfile -t solar-mpi .
FROM debian:12.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates g++ libhdf5-openmpi-dev libopenmpi-dev make openmpi-bin pkgconf python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/solar
ENV PATH=/opt/solar/bin:$PATH
COPY constraints.txt /src/
# Without isolation h5py is built with this mpi4py; with it, an old one would be compiled for the build alone.
# -s: without names for debuggers, which were five sixths of both.
RUN pip install --no-cache-dir --constraint /src/constraints.txt \
        torch numpy zstandard cython pkgconfig setuptools wheel \
    && LDFLAGS=-s pip install --no-cache-dir --constraint /src/constraints.txt --no-binary mpi4py mpi4py \
    && CC=mpicc LDFLAGS=-s HDF5_MPI=ON HDF5_PKGCONFIG_NAME=hdf5-openmpi \
        pip install --no-cache-dir --no-deps --no-build-isolation --constraint /src/constraints.txt --no-binary h5py h5py
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src \
    && pip install --no-cache-dir --no-deps /wheels/*.whl \
    && pip uninstall --yes cython pkgconfig setuptools wheel

FROM build AS test
ARG TESTS="tests/test_mpio.py tests/test_store.py"
RUN pip install --no-cache-dir --constraint /src/constraints.txt pytest hypothesis \
    && mkdir /tested && cp -r /src/tests /src/pyproject.toml /tested/
WORKDIR /tested
RUN pytest -q $TESTS && touch /tested/passed

# What no image runs is taken out; the tests before had it.
FROM build AS slim
RUN /src/docker/slim /opt/solar && python -m solar.selftest

FROM debian:12.11-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libhdf5-openmpi-103-1 libhdf5-openmpi-hl-100 openmpi-bin python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --create-home --uid 1000 solar
COPY --from=slim /opt/solar /opt/solar
# What failed its tests makes no image: this file is not there then.
COPY --from=test /tested/passed /opt/solar/tested
ENV PATH=/opt/solar/bin:$PATH \
    OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
USER 1000:1000
WORKDIR /home/solar
HEALTHCHECK --interval=1h --timeout=2m --start-period=2m CMD ["solar", "demo", "--samples", "256"]
CMD ["solar", "--help"]
