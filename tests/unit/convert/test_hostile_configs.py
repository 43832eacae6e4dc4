"""A whole draft whose config holds anything at all is converted or refused, with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.commands.convert_outcome import served
from sglang_eagle3_patch.commands.doctor_inputs import CannotJudge
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

HEADERS = drafts.top() | drafts.layer("layers.0.")
FLAT = drafts.flat(drafts.SGLANG, eagle_config=drafts.MODELOPT, rope_theta=1e4, dtype="bfloat16")
NESTED = drafts.speculators(drafts.TRAINER, "0.9.0", norm_before_residual=True, **drafts.IDS)
KEYS = sorted(FLAT.keys() | NESTED.keys() | {"rope_parameters", "rope_scaling", "layer_types"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "eagle3", "llama", "yarn", "default", "silu"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rope_type", "factor", "rope_theta", "model_type", "verifier", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.write(tmp_path_factory.mktemp("hostile") / "in", FLAT, HEADERS)


@settings(max_examples=400, deadline=None)
@given(
    nested=st.booleans(),
    changes=CHANGES,
    deeper=CHANGES,
    place=st.sampled_from(["eagle_config", "transformer_layer_config", "speculators_config"]),
    target=st.booleans(),
)
def test_any_config(
    folder: Path,
    nested: bool,
    changes: dict[str, Any],
    deeper: dict[str, Any],
    place: str,
    target: bool,
) -> None:
    config = {**(NESTED if nested else FLAT), **changes}
    if isinstance(config.get(place), dict):
        config[place] = {**config[place], **deeper}
    (folder / "config.json").write_text(json.dumps(config))
    wanted = {} if target else {"target": None}
    said = ""
    try:
        conversion = plan_conversion(folder, written.options(needs_plugin=True, **wanted))
        served(conversion, None)
    except (NotConvertible, CheckpointUnreadable, CannotJudge) as refusal:
        said = str(refusal)
    assert "\n" not in said
