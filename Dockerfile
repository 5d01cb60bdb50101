FROM python:3.11-slim
WORKDIR /srv
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY dicast dicast
COPY app app
COPY workers workers
COPY config config
RUN pip install --no-cache-dir -c requirements.lock '.[server,tracing,scores,plots]' \
    && useradd --create-home dicast && mkdir -p /data/state /data/results /data/uploads && chown -R dicast /data
USER dicast
CMD ["celery", "-A", "dicast", "worker"]
