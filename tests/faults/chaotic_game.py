"""Simulated game with faults on request, as `scripts/simulated_game.py` with two more arguments.

A fault is written `KIND@name=value,name=value`, several of them with `;` between:

- `kill@race=3,time=2.0`: the process ends at once, without a word, at 2.0 s of the third race.
- `hang@race=2,seconds=5`: it stands still with its sockets open, for so long (without `seconds` for good).
- `late@race=2,seconds=1`: one step is reported so much later.
- `slow@race=2,factor=5`: from there on everything takes so many times as long.
- `disconnect`: half a message, then the connection is closed. `garbage`: random bytes instead of a message.
- `miss`: a step is not reported. `skip_countdown`: no step of the countdown is reported; `race` is the one after it.
- `no_frame`: a picture asked for never comes. `no_finish`: the finish is not reported.
- `bad_state`: the state has positions that are not numbers.
- `refuse@starts=2`: the first two processes end instead of listening (needs a ledger).
- `random@share=0.1,seed=7`: each race meets one of the faults above, drawn at random, with this probability.

Races are counted from 1 in each process. A new process makes the same faults again, unless it is given the same ledger:
a file with the faults so far.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts")]

import simulated_game  # noqa: E402

from trackmania_rl.protocol.messages import INT32, INT32_PAIR, MessageId  # noqa: E402
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE  # noqa: E402
from trackmania_rl.simulator.server.connection import ClientGone, Connection  # noqa: E402
from trackmania_rl.simulator.server.game import SimulatedGame  # noqa: E402
from trackmania_rl.simulator.server.server import GameServer  # noqa: E402

logger = logging.getLogger(__name__)

EXIT_CODE_KILLED: Final = 137
GARBAGE_BYTES: Final = 256
LATEST_RANDOM_FAULT_S: Final = 3.0
LONGEST_NAP_S: Final = 0.05


FaultKind = StrEnum(
    "FaultKind",
    "KILL HANG LATE SLOW DISCONNECT GARBAGE MISS SKIP_COUNTDOWN NO_FRAME NO_FINISH BAD_STATE REFUSE RANDOM",
)
DRAWN_AT_RANDOM: Final = tuple(
    kind for kind in FaultKind if kind not in (FaultKind.REFUSE, FaultKind.RANDOM, FaultKind.SLOW)
)
"""SLOW is not among them: it would last, and what follows would be lost in it."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: FaultKind  # fault
    race: int = 1  # in which race of the process, from 1
    time: float = 0.0  # from this race time on, in seconds
    seconds: float = float("inf")  # how long a HANG or LATE lasts
    factor: float = 5.0  # how many times as long everything takes when SLOW
    starts: int = 2  # how many processes REFUSE
    share: float = 0.1  # of races that meet a RANDOM fault
    seed: int = 0  # of RANDOM faults


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read faults as the module's docstring describes them. Raise `ValueError` or `TypeError` for others."""
    faults = []
    for part in filter(None, map(str.strip, text.split(";"))):
        kind, _, options = part.partition("@")
        values = dict(option.split("=") for option in filter(None, options.split(",")))
        numbers = {
            name: int(value) if name in ("race", "starts", "seed") else float(value) for name, value in values.items()
        }
        faults.append(Fault(FaultKind(kind), **numbers))  # type: ignore[arg-type]
    return tuple(faults)


class Ledger:
    """What was done already, in a file that games started one after the other share; None for this process alone."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self.start = 1 + self.lines.count("start")
        self.note("start")

    def note(self, line: str) -> None:
        self.lines.append(line)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{line}\n")


class Chaos:
    """Which faults are due, of all of them and what a ledger says was done already."""

    def __init__(self, faults: Sequence[Fault], ledger: Ledger) -> None:
        self.ledger = ledger
        self._waiting = [fault for fault in faults if str(fault) not in ledger.lines]
        self._random = [
            (fault, random.Random(fault.seed * 1_000_003 + ledger.start))
            for fault in faults
            if fault.kind == FaultKind.RANDOM
        ]

    def refuses_to_start(self) -> bool:
        """Whether this process is to end instead of listening."""
        return any(fault.kind == FaultKind.REFUSE and self.ledger.start <= fault.starts for fault in self._waiting)

    def draw(self, race: int) -> None:
        """Draw the random faults of the race that begins."""
        for fault, generator in self._random:
            if generator.random() < fault.share:
                kind = generator.choice(DRAWN_AT_RANDOM)
                seconds = 0.5 if kind == FaultKind.LATE else fault.seconds
                due_race, time_s = race, generator.uniform(0.0, LATEST_RANDOM_FAULT_S)
                if kind == FaultKind.SKIP_COUNTDOWN:  # this race's is over; the next one has one on another map
                    due_race, time_s = race + 1, 0.0
                self._waiting.append(Fault(kind, race=due_race, time=time_s, seconds=seconds))

    def take(self, race: int, time_ms: int, *kinds: FaultKind) -> Fault | None:
        """A fault of one of these kinds that is due, which counts as done from now on."""
        for fault in self._waiting:
            if fault.kind in kinds and fault.race == race and 1000 * fault.time <= time_ms:
                self._waiting.remove(fault)
                self.ledger.note(str(fault))
                logger.warning("chaos: %s in race %d at %d ms", fault.kind, race, time_ms)
                return fault
        return None


class ChaoticGameServer(GameServer):
    """A `GameServer` with faults."""

    def __init__(self, chaos: Chaos, game: SimulatedGame, port: int, speed: float = 1.0) -> None:
        super().__init__(game, port, speed=speed)
        self._chaos = chaos
        self._race = 0
        self._race_time_ms = 0
        self._slowness = 1.0
        self._last_step_s = time.monotonic()
        self._noise = random.Random(chaos.ledger.start)
        self._withheld = 0  # the id of a message that is not reported for the rest of this race

    def _sync(self, message_id: MessageId, *message: bytes | memoryview) -> None:
        if message_id == MessageId.RUN_STEP:
            self._count((INT32.unpack_from(message[0], INT32.size))[0])
        if self._is_withheld(message_id, message[0]):
            return
        if message_id == MessageId.RUN_STEP:
            fault = self._take(FaultKind.KILL, FaultKind.HANG, FaultKind.LATE, FaultKind.SLOW)
            if fault is not None:
                self._hold_up(fault)
            self._drag()
            if self._take(FaultKind.GARBAGE):
                message = (self._noise.randbytes(GARBAGE_BYTES), *message)
            elif self._take(FaultKind.DISCONNECT):
                self._break_off(message[0])
                return
        super()._sync(message_id, *message)

    def _get_state(self, client: Connection) -> None:
        if self.game.race is None or not self._take(FaultKind.BAD_STATE):
            super()._get_state(client)
            return
        blob = bytearray(self.game.race.save_state())
        np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)["position_m"] = np.nan
        client.write(INT32.pack(len(blob)))
        client.write(bytes(blob))

    def _take(self, *kinds: FaultKind) -> Fault | None:
        return self._chaos.take(self._race, self._race_time_ms, *kinds)

    def _count(self, race_time_ms: int) -> None:
        """Follow the client's races: one begins where the race time becomes positive, or falls, as by a rewind."""
        if race_time_ms > 0 and (self._race_time_ms <= 0 or race_time_ms < self._race_time_ms):
            self._race += 1
            self._withheld = 0
            self._chaos.draw(self._race)
        self._race_time_ms = race_time_ms

    def _is_withheld(self, message_id: MessageId, message: bytes | memoryview) -> bool:
        """Whether the client does not hear of something."""
        race = self._race
        if message_id == MessageId.RUN_STEP and self._race_time_ms < 0:
            if self._chaos.take(race + 1, 0, FaultKind.SKIP_COUNTDOWN):
                self._withheld = MessageId.RUN_STEP
            return self._withheld == MessageId.RUN_STEP
        if message_id == MessageId.RUN_STEP:
            self._withheld = 0 if self._withheld == MessageId.RUN_STEP else self._withheld
            return self._take(FaultKind.MISS) is not None
        if message_id == MessageId.REQUESTED_FRAME and self._take(FaultKind.NO_FRAME):
            return True
        if message_id == MessageId.CHECKPOINT_COUNT_CHANGED:
            current, target = INT32_PAIR.unpack_from(message, INT32.size)
            if current == target and self._take(FaultKind.NO_FINISH):
                self._withheld = message_id
            return self._withheld == message_id
        return False

    def _hold_up(self, fault: Fault) -> None:
        if fault.kind == FaultKind.KILL:
            os._exit(EXIT_CODE_KILLED)
        elif fault.kind == FaultKind.SLOW:
            self._slowness = fault.factor
            self._last_step_s = time.monotonic()
        else:
            end_s = time.monotonic() + fault.seconds
            while time.monotonic() < end_s and not self._is_stopping:
                time.sleep(LONGEST_NAP_S)

    def _drag(self) -> None:
        """Sleep so that the time since the last step becomes as much longer as the game is slow."""
        if self._slowness > 1:
            time.sleep((self._slowness - 1) * (time.monotonic() - self._last_step_s))
            self._last_step_s = time.monotonic()

    def _break_off(self, message: bytes | memoryview) -> None:
        """Send half a message and hang up."""
        if self._client is not None:
            try:
                self._client.write(message[: len(message) // 2])
                self._client.flush()
            except ClientGone as gone:
                logger.info("%s", gone)
            self._drop_client("chaos")


def main() -> int:
    """Run the game; return the exit code."""
    parser = simulated_game.make_parser()
    parser.add_argument("--chaos", default=os.environ.get("SIMULATED_GAME_CHAOS", ""), metavar="FAULTS")
    parser.add_argument("--chaos-ledger", type=Path, default=os.environ.get("SIMULATED_GAME_CHAOS_LEDGER"))
    arguments = parser.parse_args()
    chaos = Chaos(parse_faults(arguments.chaos), Ledger(arguments.chaos_ledger))
    if chaos.refuses_to_start():
        print("error: it refuses to start, as --chaos asks", file=sys.stderr)
        return 1
    return simulated_game.run(arguments, lambda game, port, speed: ChaoticGameServer(chaos, game, port, speed=speed))


if __name__ == "__main__":
    sys.exit(main())
