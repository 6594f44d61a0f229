# The image the Deployment runs: docker build -t capcard-sched:0.1.0 .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
# The environment has no pip of its own: it is filled from outside, with the pinned files and no others.
COPY requirements/run.lock requirements/run.lock
RUN python -m venv --without-pip /opt/capcard-sched \
    && pip --python /opt/capcard-sched/bin/python install --no-cache-dir --require-hashes -r requirements/run.lock
COPY pyproject.toml README.md LICENSE ./
COPY capcard_sched capcard_sched
COPY actions actions
COPY plugins plugins
COPY config config
# Scheduler-confs may name the plugin extender.
COPY distributions/extender distributions/extender
# What only building needs goes away again.
RUN pip --python /opt/capcard-sched/bin/python install --no-cache-dir --no-deps --no-build-isolation . ./distributions/extender \
    && pip --python /opt/capcard-sched/bin/python uninstall --yes hatchling packaging pathspec pluggy tomlkit trove-classifiers

FROM python:${PYTHON}-slim
RUN pip uninstall --yes --root-user-action=ignore pip
COPY --from=build /opt/capcard-sched /opt/capcard-sched
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/opt/capcard-sched/bin/capcard-sched"]
CMD ["--help"]
