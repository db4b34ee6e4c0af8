# One image for every Narwhal process: routers, simulated engines, tools. `docker build -t narwhal .`
FROM python:3.12-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir --disable-pip-version-check build hatchling
COPY pyproject.toml README.md LICENSE ./
COPY narwhal narwhal
COPY lua lua
RUN python -m build --wheel --no-isolation --outdir /dist

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir --disable-pip-version-check /dist/*.whl \
    && useradd --system --uid 10001 --home-dir /var/lib/narwhal --create-home narwhal
USER narwhal
WORKDIR /var/lib/narwhal
ENV PYTHONUNBUFFERED=1 NARWHAL_HOST=0.0.0.0
EXPOSE 8000
# Alive, not ready: a standby answers /ready with 503 and is healthy.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('NARWHAL_PORT', '8000') + '/health', timeout=2)"]
CMD ["narwhal", "--help"]
