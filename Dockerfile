# A server of a run: docker run -p 127.0.0.1:8000:8000 -v "$PWD/checkpoints/tiny:/workdir:ro" lingua-flax
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /source/constraints.txt /wheels/*.whl /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[serve,export]" \
    && useradd --create-home --uid 1000 lingua
USER 1000
EXPOSE 8000
HEALTHCHECK --start-period=2m CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["lingua-flax"]
CMD ["serve", "--workdir", "/workdir", "--host", "0.0.0.0"]
