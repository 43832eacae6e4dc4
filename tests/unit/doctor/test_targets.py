"""What the doctor says of targets whose class can't do all that speculation asks of it."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.rules import Case, judge_case
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from tests.unit.doctor.cases import NEWEST, OLDEST, TARGET, case


def of(architecture: str, release: str = NEWEST, **more: Any) -> Case:
    config = {**TARGET.config, "architectures": [architecture], **more}
    return case(release=release, target=TargetSpec("org/target", config))


def nested(key: str, *architectures: str) -> dict[str, Any]:
    return {key: {**TARGET.config, "architectures": list(architectures)}}


def effects(told: Case, rule: str = "E3-target-capture") -> tuple[str, str]:
    (found,) = (f.effects for f in judge_case(told).findings if f.id == rule)
    return found["stock"], found["plugin"]


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_a_wrapper_under_a_flat_config_is_lent_what_its_language_model_can(release: str) -> None:
    told = of("LlavaLlamaForCausalLM", release)
    assert effects(told) == ("refuses", "serves")
    assert told.lent_class is not None
    assert told.lent_class.captured_layers(None, 8) == (2, 4, 5)
    (found,) = (f for f in judge_case(told).told if f.id == "E3-target-capture")
    assert found.severity == "fixable"


def test_the_class_that_the_source_names_beats_the_configs() -> None:
    told = of("DotsVLMForCausalLM", **nested("language_config", "ChatGLMModel"))
    assert effects(told) == ("refuses", "serves")


@pytest.mark.parametrize(
    ("architectures", "plugin"),
    [
        (["Qwen3ForCausalLM"], "serves"),
        (["InternLM2ForCausalLM"], "refuses"),
        (["TheirOwn"], "unknown"),
        ([], "unknown"),
    ],
)
def test_where_the_source_names_several_the_config_decides(
    architectures: list[str], plugin: str
) -> None:
    told = of("InternVLChatModel", **nested("llm_config", *architectures))
    assert effects(told) == ("refuses", plugin)
    assert effects(told, "E3-target-embedding") == ("refuses", plugin)


def test_a_language_model_that_is_not_registered_is_not_known() -> None:
    assert effects(of("MllamaForConditionalGeneration")) == ("refuses", "unknown")


def test_a_class_that_holds_no_language_model_is_lent_nothing() -> None:
    told = of("Glm4vForConditionalGeneration", **nested("text_config", "LlamaForCausalLM"))
    assert effects(told) == ("refuses", "refuses")


def test_a_class_that_can_capture_does_so_by_its_own_rule() -> None:
    told = of("Gemma3ForConditionalGeneration", **nested("text_config", "DeepseekV3ForCausalLM"))
    assert told.target_class is not None
    assert told.lent_class is not None
    assert told.target_class.explicit_ids == "plus_one"
    assert told.lent_class.explicit_ids == "plus_one"
