# A server of the network that comes with the repository:
#   docker run -p 127.0.0.1:8000:8000 lingua-flax serve --workdir /phrasebook --host 0.0.0.0
# or of another run:
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/checkpoints/tiny:/workdir:ro" lingua-flax
# An image for GPUs or TPUs is built with --build-arg EXTRA=cuda or EXTRA=tpu.
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
# What the package needs, in a layer of its own, which stays when only the source changes. Of an extra that consists of
# another one, such as lingua-flax[text], the other one is named here.
ARG EXTRA=
COPY constraints.txt pyproject.toml /build/
RUN python -c "import sys, tomllib; project = tomllib.load(open('/build/pyproject.toml', 'rb'))['project']; \
        extras = ['text', 'serve', 'export', *sys.argv[1:]]; \
        lists = [project['dependencies'], *map(project['optional-dependencies'].__getitem__, extras)]; \
        print(*(each for names in lists for each in names if not each.startswith('lingua-flax')), sep='\n')" $EXTRA \
        > /build/requirements.txt \
    && pip install --no-cache-dir --constraint /build/constraints.txt --requirement /build/requirements.txt \
    && useradd --create-home --uid 1000 lingua
COPY checkpoints/phrasebook /phrasebook
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl
USER 1000
EXPOSE 8000
HEALTHCHECK --start-period=2m CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["lingua-flax"]
CMD ["serve", "--workdir", "/workdir", "--host", "0.0.0.0"]
