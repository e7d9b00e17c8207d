# syntax=docker/dockerfile:1
# Two stages: the builder makes a virtual environment, the final image holds it and nothing else.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/defragd && python -m venv /opt/build
# Dependencies first, so that a change of our code alone does not fetch them again; each is checked against its hash.
COPY .ci/requirements.lock .ci/build.lock .ci/
RUN /opt/defragd/bin/pip install --require-hashes -r .ci/requirements.lock \
    && /opt/build/bin/pip install --require-hashes -r .ci/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY crds crds
COPY defragd defragd
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
    && /opt/defragd/bin/pip install --no-deps /dist/*.whl \
    && /opt/defragd/bin/python -m compileall -q /opt/defragd/lib

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="defragd" \
      org.opencontainers.image.description="Defragments HAMi-shared GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /opt/defragd /opt/defragd
ENV PATH=/opt/defragd/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Numeric, so that Kubernetes can check runAsNonRoot; the root file system may be read-only (only /tmp is written).
USER 65532:65532
EXPOSE 8083 8443
ENTRYPOINT ["defragd"]
CMD ["run"]
