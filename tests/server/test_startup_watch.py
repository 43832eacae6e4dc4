"""A start that is slow, one that waits for ever and one that fails, on real servers.

A CPU captures no graphs; `faulty_launch.py` says what is put in their place. The rank that waits is
let go after 16 s by the collective's own patience, so that the server ends by SGLang's own hand.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.engine import selfreport
from tests.cpu_sglang import environments, releases, server
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.releases import WHOLE
from tests.server.background import Outcomes
from tests.server.cases import CASES, OUTLOOK, TWO_RANKS, TWO_RANKS_VARIABLES, ServerCase
from tests.server.faulty_launch import SECONDS, SIZES, VARIABLE, WITHOUT_PY_SPY
from tests.server.test_two_ranks import of_rank

LAUNCHER = "tests.server.faulty_launch"
SAYS = "sglang-eagle3-patch: startup-watch: "
STALL_S = 10
STALL = {f"{server.VARIABLE}_STALL_S": str(STALL_S)}
STALLED = re.compile(
    r"startup-watch: the start has not moved for (\d+) s, in: (.*?)\. This only observes"
)
STAGE = "draft decode graph capture"


def ask_for_stacks(running: server.Server, folder: Path) -> dict[str, Any]:
    """Ask the command for the stacks of a server that serves, then have it answer a prompt."""
    environment = environments.ensure(releases.DEFAULT)
    command = environment.python.with_name("sglang-eagle3")
    finished = subprocess.run(
        [command, "stacks", "--server", str(running.process.pid)],
        env=server.process_variables(environment, {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    served = running.generate(OUTLOOK.prompts[:1], OUTLOOK.new_tokens)
    running.settle()
    (scheduler,) = (r for r in selfreport.read_all(folder / "status") if r["role"] == "scheduler")
    return {
        "status": finished.returncode,
        "told": finished.stdout + finished.stderr,
        "texts": served.texts,
        "log": running.log,
        "ready": scheduler["facts"].get("ready"),
    }


DEADLOCKED = ServerCase(
    forms.native,
    launcher=LAUNCHER,
    arguments=TWO_RANKS,
    variables={VARIABLE: "deadlock", **TWO_RANKS_VARIABLES, **STALL},
)
UNSPIED = "deadlocked start without py-spy"
CASES |= {
    "slow start": ServerCase(
        forms.native,
        launcher=LAUNCHER,
        variables={VARIABLE: "slow", **STALL},
        asks=ask_for_stacks,
    ),
    "deadlocked start": DEADLOCKED,
    UNSPIED: replace(DEADLOCKED, variables={**DEADLOCKED.variables, WITHOUT_PY_SPY: "1"}),
    "crashed start": ServerCase(
        forms.native, launcher=LAUNCHER, variables={VARIABLE: "crash", **STALL}
    ),
    "crashed start, unwatched": ServerCase(
        forms.native,
        launcher=LAUNCHER,
        variables={VARIABLE: "crash", server.VARIABLE: "-startup-watch"},
    ),
}


@pytest.mark.serves("slow start")
class TestSlow:
    @pytest.fixture
    def told(self, outcomes: Outcomes) -> dict[str, Any]:
        outcome = outcomes["slow start"]
        assert outcome.told is not None, outcome.log[-4000:]
        told: dict[str, Any] = outcome.told
        return told

    def test_no_alarm_though_the_stage_outlasts_a_stall(self, told: dict[str, Any]) -> None:
        assert len(SIZES) * SECONDS > STALL_S
        assert STALLED.search(told["log"]) is None

    def test_progress_names_the_size(self, told: dict[str, Any]) -> None:
        lines = [line for line in told["log"].splitlines() if f"scheduler: {STAGE}, " in line]
        assert any(f"{STAGE}, batch size {SIZES[1]} (1 done), " in line for line in lines), lines
        assert "GiB of memory taken" in lines[0]
        assert len(lines) <= 1 + len(SIZES) * SECONDS / 5

    def test_every_stage_is_summed_up(self, told: dict[str, Any]) -> None:
        (line,) = re.findall(r"startup-watch: started in .*", told["log"])
        parts = [part.rsplit(" ", 2) for part in line.partition(" s: ")[2].split(", ")]
        stages = {name: float(seconds) for name, seconds, _ in parts}
        assert stages[STAGE] >= len(SIZES) * SECONDS
        wanted = ("joining the other ranks", "weights", "memory pools", "attention backend")
        assert all(any(name.endswith(part) for name in stages) for part in wanted)
        assert re.search(
            r"startup-watch: the first batch took \d+\.\d s; the watch ends", told["log"]
        )

    def test_the_block_of_what_came_of_it(self, told: dict[str, Any]) -> None:
        (block,) = re.findall(r"sglang-eagle3-patch: (EAGLE-3: .*)", told["log"])
        for part in (
            "EAGLE-3: 14/14 tensors of the draft loaded; ",
            "aux layers 2, 4, 5 (from SGLang's default, since the config states none) → 3×128 → "  # noqa: RUF001
            "fc applied",
            "embedding: the target's; head: the draft's own; ",
            "patches applied: ",
        ):
            assert part in block
        assert told["ready"] == block

    def test_the_command_shows_every_process_and_harms_none(self, told: dict[str, Any]) -> None:
        assert told["status"] == 0, told["told"]
        places = re.findall(r"^(\S.*) \(pid \d+\), is at (.*)$", told["told"], re.MULTILINE)
        assert len(places) >= 3
        assert any("scheduler" in title for title, _ in places)
        assert "event_loop" in told["told"]
        assert told["texts"] == OUTLOOK.texts[:1]


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=pytest.mark.serves(name)) for name in ("deadlocked start", UNSPIED)],
)
class TestDeadlocked:
    def test_it_is_told_once_within_the_set_time(self, outcomes: Outcomes, case: str) -> None:
        log = outcomes[case].log
        ((seconds, stage),) = STALLED.findall(log)
        assert STALL_S <= int(seconds) <= STALL_S + 2
        assert stage == f"{STAGE}, batch size {SIZES[1]} (1 done)"

    def test_the_rank_that_waits_and_its_line_are_named(
        self, outcomes: Outcomes, case: str
    ) -> None:
        log = outcomes[case].log
        (waiting,) = re.findall(r"^  scheduler TP0 \(pid \d+\): .*", log, re.MULTILINE)
        assert f": {STAGE}, batch size {SIZES[1]} (1 done), " in waiting
        assert re.search(r"waits at \S*monitored_barrier \(torch/distributed/\S+:\d+\)", waiting)
        (other,) = re.findall(r"^  scheduler TP1 \(pid \d+\): .*", log, re.MULTILINE)
        assert STAGE not in other
        assert "waits at " in other

    def test_stacks_last_lines_and_advice_are_there(self, outcomes: Outcomes, case: str) -> None:
        log = outcomes[case].log
        assert "(1) tell capture from the model: start once with --disable-cuda-graph" in log
        for rank in ("TP0", "TP1"):
            assert f"  scheduler {rank} logged last:" in log
            assert f"  stacks of scheduler {rank} (pid " in log
        assert re.search(r"^    .*faulty_launch\.py\D+\d+", log, re.MULTILINE)

    def test_the_end_is_sglangs_own(self, outcomes: Outcomes, case: str) -> None:
        outcome = outcomes[case]
        assert outcome.served is None
        assert outcome.exit_status not in (0, None)
        assert "Rank 1 failed to pass monitoredBarrier" in outcome.log
        assert "Scheduler hit an exception" in outcome.log
        # It ended long after it was told of.
        assert outcome.log.index("This only observes") < outcome.log.index("monitoredBarrier in")

    def test_one_rank_tells(self, outcomes: Outcomes, case: str) -> None:
        log = outcomes[case].log
        by_rank = [bool(STALLED.search(of_rank(rank, log))) for rank in ("TP0", "TP1")]
        assert sum(by_rank) == 1


@pytest.mark.serves(UNSPIED)
def test_without_py_spy_the_other_rank_was_asked(outcomes: Outcomes) -> None:
    _, *stacks = outcomes[UNSPIED].log.split("  stacks of scheduler TP")
    assert len(stacks) == 2
    # Its own thread wrote them: beside the rank that tells, which needs no asking.
    asked = [re.search(r" in own\n.*/answers\.py\", line \d+ in _answer_all\n", s) for s in stacks]
    assert sum(map(bool, asked)) == 1


@pytest.mark.serves("crashed start")
def test_a_crash_is_sglangs_own(outcomes: Outcomes) -> None:
    outcome = outcomes["crashed start"]
    assert outcome.served is None
    assert outcome.exit_status not in (0, None)
    assert "RuntimeError: planted: operation not permitted when stream is capturing" in outcome.log
    assert "Scheduler hit an exception" in outcome.log
    assert STALLED.search(outcome.log) is None
    assert f"{SAYS}started in" not in outcome.log


@pytest.mark.parametrize(
    "unwatched",
    [
        pytest.param(name, marks=pytest.mark.serves("crashed start", name))
        for name in ("crashed start, unwatched",)
        if WHOLE
    ],
)
def test_it_ends_as_one_that_nobody_watches(outcomes: Outcomes, unwatched: str) -> None:
    assert outcomes["crashed start"].exit_status == outcomes[unwatched].exit_status
    assert SAYS not in outcomes[unwatched].log
