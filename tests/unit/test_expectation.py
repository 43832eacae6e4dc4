"""The shipped expectation belongs to the shipped weights, and to transformers' own model."""

from __future__ import annotations

import json

import pytest

from tests.cpu_sglang.pair import corpus, expectation
from tests.cpu_sglang.pair.outlook import Outlook, without_trailing_zeros


def test_computed_anew_it_is_the_same() -> None:
    shipped = json.loads((expectation.ASSETS / "expectation.json").read_text())
    computed = expectation.compute()
    # The gap is a float of this processor's; everything that servers are held to is exact.
    assert computed.pop("smallest_logit_gap") == pytest.approx(
        shipped.pop("smallest_logit_gap"), abs=0.01
    )
    assert computed == shipped


def test_the_pair_tells_a_good_drafter_from_a_bad_one() -> None:
    outlook = Outlook.shipped()
    assert outlook.accept_length("trained", "plain", 10) > 3.5
    assert outlook.accept_length("norm_before_residual", "plain", 10) > 3.5
    assert outlook.accept_length("norm_before_residual_ignored", "plain", 10) < 3.0
    assert outlook.accept_length("mla", "plain", 10) > 3.5
    assert outlook.accept_length("eagle_mode", "plain", 10) < 2.0


@pytest.mark.parametrize(
    "case", ["norm_before_residual_ignored", "weak", "weak_norm_before_residual_ignored"]
)
def test_the_ways_of_counting_are_told_apart(case: str) -> None:
    ways = Outlook.shipped().by_case[case]
    assert len({json.dumps(histograms[:4]) for histograms in ways.values()}) == len(ways) == 4


@pytest.mark.parametrize("case", ["mla_weak", "mla_weak_norm_before_residual_ignored"])
def test_the_ways_of_releases_that_know_mla_are_told_apart(case: str) -> None:
    ways = Outlook.shipped().by_case[case]
    assert ways["plain"][:4] != ways["counted_twice"][:4]


def test_no_near_tie_decides_the_text() -> None:
    shipped = json.loads((expectation.ASSETS / "expectation.json").read_text())
    assert shipped["smallest_logit_gap"] > 0.1


def test_the_assets_stay_small() -> None:
    files = [path for path in expectation.ASSETS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 7_000_000


def test_held_out_prompts_are_of_one_length() -> None:
    assert {len(expectation.encode(prompt)) for prompt in corpus.held_out_prompts(10)} == {48}


@pytest.mark.parametrize(
    ("histogram", "shown"), [([1, 0, 2, 0, 0], [1, 0, 2]), ([0, 0], []), ([], []), ([0, 3], [0, 3])]
)
def test_trailing_zeros_go(histogram: list[int], shown: list[int]) -> None:
    assert without_trailing_zeros(histogram) == shown
