"""eagle3-mode, against the real resolution of server arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cpu_sglang.pair import forms


def resolved_algorithm(draft: Path | None, algorithm: str | None, **more: Any) -> str | None:
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=str(forms.TARGET),
        device="cpu",
        trust_remote_code=True,
        speculative_algorithm=algorithm,
        speculative_draft_model_path=None if draft is None else str(draft),
        **more,
    )
    arguments.resolve_once()
    result: str | None = resolving_view(arguments).speculative_algorithm
    return result


CHAIN = {
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "eagle"])
@pytest.mark.parametrize("form", ["native", "speculators"])
@pytest.mark.usefixtures("plugin")
def test_an_eagle3_draft_runs_as_eagle3(
    form: str, algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draft = forms.write_form(form, tmp_path / "draft")
    assert resolved_algorithm(draft, algorithm, **CHAIN) == "EAGLE3"
    assert "Fix: start with --speculative-algorithm EAGLE3" in caplog.text


@pytest.mark.usefixtures("rank")
def test_stock_takes_eagle_at_its_word(native_draft: Path) -> None:
    assert resolved_algorithm(native_draft, "EAGLE", **CHAIN) == "EAGLE"


@pytest.mark.usefixtures("plugin")
def test_other_speculation_is_left_alone(
    tmp_path: Path, native_draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    eagle1 = {**forms.sglang_config(), "architectures": ["LlamaForCausalLMEagle"]}
    draft = forms.write(tmp_path / "eagle1", forms.drafter_weights(), eagle1)
    assert resolved_algorithm(draft, "EAGLE", **CHAIN) == "EAGLE"
    assert resolved_algorithm(native_draft, "EAGLE3", **CHAIN) == "EAGLE3"
    assert resolved_algorithm(None, None) is None
    assert "sglang-eagle3-patch" not in caplog.text


@pytest.mark.usefixtures("plugin")
def test_an_unreadable_draft_is_sglangs_own_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OSError, match="not a valid JSON file"):
        resolved_algorithm(tmp_path, "EAGLE", **CHAIN)
