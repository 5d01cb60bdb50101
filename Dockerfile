FROM python:3.11-slim
WORKDIR /srv
COPY pyproject.toml requirements.lock README.md ./
COPY app app
COPY workers workers
COPY config config
RUN pip install --no-cache-dir -c requirements.lock . \
    && useradd --create-home dicast && mkdir /data && chown dicast /data
USER dicast
CMD ["celery", "-A", "app", "worker"]
