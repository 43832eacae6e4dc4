"""Our launcher's judgement on real launches: once in each, an error ends it, nothing else does."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import server
from tests.server.background import Outcomes
from tests.server.cases import CASES, MATRIX_ALONE, NO_PREFLIGHT

SAYS = "sglang-eagle3-patch: preflight: "
REFUSED = ["refused-no-k", "0.5.9 refused-no-k"]
# Every other server under our launcher; those of other speculation say nothing.
UNDER_OURS = [
    name
    for name, case in CASES.items()
    if case.launcher == server.OURS
    and case.draft is not None
    and name not in (*REFUSED, *MATRIX_ALONE)
    and not set(NO_PREFLIGHT) & set(case.arguments)
]
JUDGED = [name for name in UNDER_OURS if CASES[name].algorithm in ("EAGLE", "EAGLE3")]
UNTOUCHED = [name for name in UNDER_OURS if name not in JUDGED]


@pytest.mark.serves(*REFUSED, "plugin-no-k")
class TestRefused:
    @pytest.mark.parametrize("case", REFUSED)
    def test_before_any_process_is_there(self, outcomes: Outcomes, case: str) -> None:
        outcome = outcomes[case]
        assert outcome.served is None
        assert outcome.exit_status == 1
        assert f"{SAYS}error: SGLang {CASES[case].release} with the plugin" in outcome.log
        assert "error E3-names-missing: 1 tensor missing (layers.0.self_attn.k" in outcome.log
        assert outcome.reports == ()
        assert "server_args=" not in outcome.log

    def test_not_with_the_override(self, outcomes: Outcomes) -> None:
        # The hook refuses it then, in the scheduler.
        outcome = outcomes["plugin-no-k"]
        assert SAYS not in outcome.log
        assert {"main", "scheduler"} <= {report["role"] for report in outcome.reports}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.serves(name)) for name in JUDGED]
)
def test_a_launch_is_judged_once_whatever_it_spawns(outcomes: Outcomes, case: str) -> None:
    lines = [line for line in outcomes[case].log.splitlines() if line.startswith(SAYS)]
    verdicts = [line.removeprefix(SAYS) for line in lines if " with the plugin: " in line]
    assert len(verdicts) == 1, lines
    assert verdicts[0].startswith(("ok: ", "warning: "))


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.serves(name)) for name in UNTOUCHED]
)
def test_other_speculation_is_not_judged(outcomes: Outcomes, case: str) -> None:
    assert SAYS not in outcomes[case].log
