# syntax=docker/dockerfile:1
# Trains on the simulated game, and passes the tests, without a GPU:
#     docker build -t trackmania-rl . && docker run --shm-size=4g -v "$PWD/runs:/runs" trackmania-rl
# With a GPU (and NVIDIA's container toolkit): the same with `docker run --gpus all ...`. Without one, the index of
# PyTorch's CPU builds (see its page on installing) spares gigabytes: docker build --build-arg TORCH_INDEX=... .
FROM python:3.12-slim-bookworm AS trainer

ARG TORCH_INDEX=
# g++ compiles what torch.compile writes for processors.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.txt requirements-test.txt pyproject.toml README.rst LICENSE ./
COPY third_party third_party
COPY trackmania_rl trackmania_rl
COPY scripts scripts
COPY config_files config_files
COPY maps maps
COPY examples examples
RUN python -m pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)" \
    && python -m pip install --no-cache-dir -r requirements-test.txt
COPY . .

RUN useradd --create-home driver && mkdir /runs && chown driver /runs /app
USER driver
VOLUME /runs
ENTRYPOINT ["python"]
CMD ["scripts/train.py", "--output-folder", "/runs"]

# The real game, which you have: its folder is mounted into Wine's drive C:, TMLoader's into the home folder.
#     docker build --target game -t trackmania-game . && docker run --shm-size=4g -v "$PWD/runs:/runs" \
#         -v /path/to/TmNationsForever:/home/driver/.wine/drive_c/TmNationsForever -v /path/to/TMLoader:/home/driver/TMLoader \
#         trackmania-game scripts/train.py --preset tmnf --output-folder /runs
FROM trainer AS game
USER root
RUN dpkg --add-architecture i386 && apt-get update \
    && apt-get install --yes --no-install-recommends wine wine64 wine32:i386 xvfb xauth openbox && rm -rf /var/lib/apt/lists/* \
    && python -m pip install --no-cache-dir ".[game-window]"
USER driver
ENV WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
RUN wineboot --init && wineserver --wait && mkdir -p /home/driver/Documents
ENTRYPOINT ["xvfb-run", "--auto-servernum", "--server-args=-screen 0 1280x960x24", \
    "sh", "-c", "openbox & exec python \"$@\"", "python"]

FROM trainer
