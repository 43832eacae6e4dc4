"""The acceptance lines of real servers add up to what SGLang itself says of each request."""

from __future__ import annotations

import re

import pytest

from tests.server.background import Outcomes

LINE = re.compile(
    r"Verify step (\d+), #req: (\d+), accepted: \[([\d, ]*)\], "
    r"accept len: ([\d.]+), accept rate: ([\d.]+)"
)


def steps_in(log: str) -> list[list[int]]:
    return [[int(n) for n in match[3].split(",")] for match in LINE.finditer(log)]


@pytest.mark.serves("plugin-a")
def test_a_line_for_every_verify_step(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-a"]
    assert outcome.served is not None
    counted = [0] * 4
    for accepted in steps_in(outcome.log):
        for count in accepted:
            counted[count] += 1
    # Asked one by one and then at once. The warm-up request is in the log and not in the result:
    # three tokens after the prefill's own take one to three verify steps.
    surplus = [n - 2 * m for n, m in zip(counted, outcome.histogram, strict=True)]
    assert all(n >= 0 for n in surplus)
    assert 1 <= sum(surplus) <= 3
    numbers = [int(match[1]) for match in LINE.finditer(outcome.log)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.serves("plugin-a")
def test_the_running_numbers(outcomes: Outcomes) -> None:
    log = outcomes["plugin-a"].log
    last = list(LINE.finditer(log))[-1]
    accepted = [count for step in steps_in(log) for count in step]
    assert float(last[4]) == pytest.approx(1 + sum(accepted) / len(accepted), abs=0.005)
    assert float(last[5]) == pytest.approx(sum(accepted) / len(accepted) / 3, abs=0.005)


@pytest.mark.serves("plugin-a")
def test_a_batch_is_one_line_of_many(outcomes: Outcomes) -> None:
    sizes = [int(match[2]) for match in LINE.finditer(outcomes["plugin-a"].log)]
    steps = steps_in(outcomes["plugin-a"].log)
    assert max(sizes) == 4
    assert sizes == [len(accepted) for accepted in steps]


@pytest.mark.serves("plugin-b")
def test_an_interval_under_the_stock_launcher(outcomes: Outcomes) -> None:
    log = outcomes["plugin-b"].log
    assert not LINE.search(log)
    line = re.search(r"Verify steps: 40, accept len: [\d.]+, accept rate: [\d.]+, by pos.*", log)
    assert line is not None
    positions = [float(text) for text in re.findall(r"[\d.]+", line[0].split("[")[1])]
    assert len(positions) == 3
    assert positions == sorted(positions, reverse=True)
