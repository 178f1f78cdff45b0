# One image for every process of the ledger: servers, workers, the scheduler, the migration.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
COPY requirements/ requirements/
# What builds our wheel, and, apart from it, what runs; both by hash. Only the latter is kept: no pip in it.
RUN python -m venv /build/venv \
 && /build/venv/bin/python -m pip install --require-hashes --requirement requirements/dev.txt
RUN python -m venv --without-pip /opt/shuffle-ledger \
 && /build/venv/bin/python -m pip --python /opt/shuffle-ledger/bin/python install \
    --require-hashes --requirement requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY shuffle_ledger/ shuffle_ledger/
COPY accounting/ accounting/
COPY cli/ cli/
COPY examples/ examples/
COPY ledger/ ledger/
COPY migrations/ migrations/
COPY workers/ workers/
RUN /build/venv/bin/python -m build --no-isolation --wheel --outdir dist . \
 && /build/venv/bin/python -m pip --python /opt/shuffle-ledger/bin/python install --no-deps dist/*.whl \
 && /opt/shuffle-ledger/bin/python -m compileall -qq -j 0 /opt/shuffle-ledger/lib

FROM python:${PYTHON}
COPY --from=build /opt/shuffle-ledger /opt/shuffle-ledger
# A process computes on one core: more of them is what `--concurrency` and replicas are for.
ENV PATH=/opt/shuffle-ledger/bin:$PATH PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1 MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/shuffle-ledger shuffle-ledger
USER 10001:10001
WORKDIR /var/lib/shuffle-ledger
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["shuffle-ledger"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
