# hadolint global ignore=DL3008
# (Debian drops old package versions from its archive: a pinned one stops building.)
#
# Two images from one build, for amd64 and aarch64 alike:
#   docker build --target server .    the server, for Docker, Compose and Kubernetes
#   docker build --target addon .     the Home Assistant app (add-on)
# Whatever has Debian's apt and Python 3.11 or newer can be the base of the server.
ARG BASE=docker.io/library/debian:bookworm-slim
# The base of the app brings s6-overlay and bashio.
ARG BUILD_FROM=ghcr.io/home-assistant/base-debian:bookworm


FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-pip python3-venv \
    && python3 -m venv --without-pip /opt/wyoming-qwen3tts
WORKDIR /src
# The dependencies are a layer of their own: a change of our code does not fetch them again.
COPY pyproject.toml README.md LICENSE config/constraints.txt ./
RUN mkdir wyoming_qwen3tts \
    && echo '__version__ = "0"' > wyoming_qwen3tts/__init__.py \
    && python3 -m pip --python /opt/wyoming-qwen3tts/bin/python install --no-cache-dir \
        --constraint constraints.txt '.[build,zeroconf]' \
    && python3 -m pip --python /opt/wyoming-qwen3tts/bin/python uninstall --yes wyoming-qwen3tts \
    # Test data that ships with packages.
    && rm -rf /opt/wyoming-qwen3tts/lib/python3*/site-packages/onnx/backend/test
COPY wyoming_qwen3tts wyoming_qwen3tts
RUN python3 -m pip --python /opt/wyoming-qwen3tts/bin/python install --no-cache-dir --no-deps .


FROM ${BASE} AS server
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    # Some bases have a user 1000 already.
    && groupadd --non-unique --gid 1000 wyoming \
    && useradd --non-unique --uid 1000 --gid wyoming --home-dir /data --no-create-home wyoming \
    && install --directory --owner wyoming --group wyoming /data
COPY --from=build /opt/wyoming-qwen3tts /opt/wyoming-qwen3tts
ENV PATH=/opt/wyoming-qwen3tts/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    WYOMING_QWEN3TTS_URI=tcp://0.0.0.0:10200 \
    WYOMING_QWEN3TTS_DATA_DIRS=/data
# By number, so that Kubernetes can see that it is not root.
USER 1000:1000
WORKDIR /data
VOLUME /data
EXPOSE 10200
# A big model on a slow disk loads for minutes; the port answers all the while, the check waits.
HEALTHCHECK --start-period=10m --interval=30s --timeout=10s --retries=3 \
    CMD ["wyoming-qwen3tts", "health"]
# Process 1 ignores SIGTERM until it has a handler: tini has one from its first instruction on.
ENTRYPOINT ["tini", "--", "wyoming-qwen3tts"]


FROM ${BUILD_FROM} AS addon
ARG BUILD_VERSION=0.1.0
LABEL io.hass.type="app" \
    io.hass.version="${BUILD_VERSION}" \
    io.hass.arch="amd64|aarch64"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY --from=build /opt/wyoming-qwen3tts /opt/wyoming-qwen3tts
COPY config/addon/rootfs /
ENV PATH=/opt/wyoming-qwen3tts/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1
HEALTHCHECK --start-period=10m --interval=30s --timeout=10s --retries=3 \
    CMD ["wyoming-qwen3tts", "health"]
