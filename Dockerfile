# Images of pfatune: `api` answers HTTP, `worker` tunes on the embedded 950 worker, `npu` is meant
# for hosts with an Ascend NPU. docker-compose.yml builds and runs them; docs/deploy.md tells how.
# None of these images has ever been built or run.

# The Debian release whose compiler pfatune is tested with.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# An image with CANN, Python 3.11 and apt-get; the name here stands for none, and only `npu` asks for it.
ARG CANN_IMAGE=cann-image-not-given

# The project's own files, once for every image.
FROM scratch AS source
COPY README.md constraints.txt pyproject.toml /
COPY pfatune /pfatune
COPY kernel /kernel
COPY db /db
COPY autotune /autotune
COPY api /api

# Dependencies come in a layer of their own, so that a change of the code does not fetch them again.
FROM ${PYTHON_IMAGE} AS build
# Where pip finds packages, if not on PyPI. Both are seen in the build's history: no passwords here.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/pfatune
ENV PATH=/opt/pfatune/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; \
p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['fleet'], sep='\n')" > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt
COPY --from=source / ./
RUN pip install -c constraints.txt '.[fleet]'

# What both services run in: a user that nothing else has, and the folder of the database.
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 pfatune \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin pfatune \
    && install -d -o 10001 -g 10001 -m 0750 /data
# The root file system may be read-only, so home is /tmp.
ENV PATH=/opt/pfatune/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PFATUNE_DB=/data/pfatune.db
WORKDIR /data
VOLUME ["/data"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["pfatune"]
USER 10001:10001

FROM base AS api
COPY --from=build /opt/pfatune /opt/pfatune
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8000/healthz', timeout=4)"]
# Outside loopback the service only starts once there is a token: `token create NAME` first.
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--no-worker"]

FROM base AS worker
USER root
# What PyPTO's compiler calls at run time, and ccache, which makes trials faster.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ make cmake ccache \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 -m 0750 /cache
COPY --from=build /opt/pfatune /opt/pfatune
# PyPTO's interpreter is built here at the first start; keep the folder.
ENV PFATUNE_CACHE=/cache
VOLUME ["/cache"]
USER 10001:10001
# The first start builds the interpreter, which may take 15 minutes on a slow machine.
HEALTHCHECK --interval=30s --timeout=5s --start-period=16m --retries=3 \
    CMD ["python", "-c", "import os, sys, time; sys.exit(time.time() - os.stat('/tmp/heartbeat').st_mtime > 120)"]
CMD ["worker", "--heartbeat-file", "/tmp/heartbeat"]

# A worker for a host with an Ascend NPU. Written from documentation alone: no CANN image, no driver
# and no NPU was there to try it on.
FROM ${CANN_IMAGE} AS npu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Where the CANN image keeps the script that sets its environment.
ARG CANN_ENV=/usr/local/Ascend/ascend-toolkit/set_env.sh
USER root
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ make cmake ccache \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 -m 0750 /data /cache
RUN python3 -m venv /opt/pfatune
ENV PATH=/opt/pfatune/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 CANN_ENV=${CANN_ENV} \
    PFATUNE_DB=/data/pfatune.db PFATUNE_CACHE=/cache PFATUNE_BACKEND=npu \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The driver's libraries come from the host.
ENV LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
WORKDIR /src
COPY --from=source / ./
RUN pip install -c constraints.txt '.[npu,fleet]'
WORKDIR /data
VOLUME ["/data", "/cache"]
STOPSIGNAL SIGTERM
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=16m --retries=3 \
    CMD ["python", "-c", "import os, sys, time; sys.exit(time.time() - os.stat('/tmp/heartbeat').st_mtime > 120)"]
# The shell is replaced by pfatune, which therefore gets the signals.
ENTRYPOINT ["/bin/bash", "-c", ". \"$CANN_ENV\" && exec pfatune \"$@\"", "pfatune"]
CMD ["worker", "--heartbeat-file", "/tmp/heartbeat"]
