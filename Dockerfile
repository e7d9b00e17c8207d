# syntax=docker/dockerfile:1
# Two stages: the builder makes a virtual environment, the final image holds it and nothing else.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/defragd
# Dependencies first, so that a change of our code alone does not fetch them again.
COPY pyproject.toml README.md LICENSE ./
COPY defragd/__init__.py defragd/__init__.py
COPY policies policies
COPY crds crds
RUN /opt/defragd/bin/pip install .
COPY defragd defragd
RUN /opt/defragd/bin/pip install --no-deps --force-reinstall . \
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
