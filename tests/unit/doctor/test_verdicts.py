"""What is said of the producers' drafts, and of the forms whose fate on servers is known."""

from __future__ import annotations

import pytest

from sglang_eagle3_patch.checkpoint.config import from_speculators, is_speculators
from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.rules import Judgement, judge_case
from sglang_eagle3_patch.checkpoint.rules.launching import COMPUTATION, STRUCTURE
from sglang_eagle3_patch.hooks import draft_config, embed_head, load_paths
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import KIMI, LAUNCH, NEWEST, OLDEST, TARGET, case, config, tensors

# Producers' files that nothing can serve as they are, and the rules that say why.
NOT_SERVED = {
    "SafeAILab": {"E3-config-architecture"},
    "SpecForge": {"E3-flags-norm-output-meaning"},
    "AngelSlim": {"E3-config-architecture"},
    "NeMo Automodel": {"E3-config-architecture"},
    "ModelOpt Megatron, two layers": {"E3-config-architecture"},
    # The headers of two layers stand under a config of one.
    "speculators 0.9 trainer, two layers": {"E3-names-layer-count"},
    # A reduced head whose map is left out.
    "TorchSpec MHA": {"E3-vocab-map-missing"},
}


@pytest.mark.parametrize("form", drafts.WRITTEN)
def test_what_every_producer_writes_is_no_error_with_the_plugin(form: str) -> None:
    _, written, headers = drafts.WRITTEN[form]
    judgement = judge_case(case(written, headers))
    errors = {found.id for found in judgement.told if found.mark("plugin") == "error"}
    assert errors == NOT_SERVED.get(form, set())


@pytest.mark.parametrize("form", drafts.WRITTEN)
def test_configs_are_what_the_hooks_make_of_them(form: str) -> None:
    _, written, headers = drafts.WRITTEN[form]
    judged = case(written, headers)
    config = written
    if is_speculators(config):
        config = from_speculators(draft_config.as_llama(config))
    assert judged.plugin_config == embed_head.corrected_config(config, judged.draft)


def test_keys_that_overrides_must_not_touch_are_those_of_the_hook() -> None:
    assert load_paths.STRUCTURE is STRUCTURE
    assert load_paths.COMPUTATION is COMPUTATION


NATIVE = (config(norm_before_residual=False), tensors())
FOUNDING = (config(), drafts.top() | drafts.layer("layers.0."))
SPECULATORS = (
    drafts.speculators(drafts.TRAINER, "0.9.0", norm_before_residual=False, **drafts.IDS),
    FOUNDING[1],
)
# Prefixed as NeMo writes them, and prefixed whole: the llama class finds `model.` by itself since
# ever, but never the head under it.
BARE = ("lm_head.weight", "d2t", "t2d")
PREFIXED = (FOUNDING[0], drafts.prefixed("model.", FOUNDING[1], bare=BARE))
PREFIXED_WHOLE = (FOUNDING[0], drafts.prefixed("model.", FOUNDING[1]))
NO_K = (NATIVE[0], tensors(**{"midlayer.self_attn.k_proj.weight": None}))


NO_STATES = {"use_aux_hidden_state": False}


def judged(form: tuple[drafts.Config, drafts.Headers], release: str) -> Judgement:
    return judge_case(case(*form, release=release))


@pytest.mark.parametrize(
    ("form", "release", "stock", "plugin"),
    [
        # Degraded there by the positions alone.
        (NATIVE, OLDEST, "degraded", "serves"),
        (NATIVE, NEWEST, "serves", "serves"),
        (FOUNDING, OLDEST, "degraded", "serves"),
        (FOUNDING, "0.5.11", "degraded", "serves"),
        (FOUNDING, "0.5.12", "serves", "serves"),
        (FOUNDING, NEWEST, "serves", "serves"),
        (SPECULATORS, OLDEST, "refuses", "serves"),
        (SPECULATORS, NEWEST, "refuses", "serves"),
        (PREFIXED, OLDEST, "degraded", "serves"),
        (PREFIXED, NEWEST, "serves", "serves"),
        (PREFIXED_WHOLE, NEWEST, "degraded", "serves"),
        (NO_K, OLDEST, "degraded", "refuses"),
        (NO_K, NEWEST, "degraded", "refuses"),
    ],
)
def test_known_fates(
    form: tuple[drafts.Config, drafts.Headers], release: str, stock: str, plugin: str
) -> None:
    found = judged(form, release)
    assert (found.stock.outcome, found.plugin.outcome) == (stock, plugin)


def test_the_founding_draft_loses_ten_tensors_on_the_founding_release() -> None:
    found = judged(FOUNDING, OLDEST)
    dropped = next(f for f in found.told if f.id == "E3-names-dropped")
    assert set(dropped.values["dropped"]) == set(drafts.layer("layers.0."))
    assert len(dropped.values["dropped"]) == 10
    assert "accept length will be about 1" in found.stock.why
    assert "position" not in found.stock.why


@pytest.mark.parametrize(("release", "stock"), [(OLDEST, "refuses"), (NEWEST, "serves")])
def test_kimi_lacks_the_setter_on_the_founding_release(release: str, stock: str) -> None:
    found = judge_case(case(*FOUNDING, release=release, target=KIMI))
    assert found.stock.outcome == stock
    assert found.plugin.outcome == "serves"
    if release == OLDEST:
        assert "has no set_eagle3_layers_to_capture" in found.stock.why


def test_latent_attention_wants_its_class() -> None:
    form = drafts.WRITTEN["TorchSpec MLA for vLLM"][1:]
    assert judged(form, OLDEST).plugin.outcome == "refuses"
    assert judged(form, NEWEST).stock.outcome == "serves"


def test_the_class_with_latent_attention_finds_nothing_under_a_prefix() -> None:
    _, stated, headers = drafts.WRITTEN["TorchSpec MLA for vLLM"]
    found = judged((stated, drafts.prefixed("model.", headers, bare=BARE)), NEWEST)
    assert (found.stock.outcome, found.plugin.outcome) == ("degraded", "serves")
    dropped = next(f for f in found.told if f.id == "E3-names-dropped").values["dropped"]
    assert set(dropped) == {f"model.{name}" for name in headers if name not in BARE}


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("linear", "E3-rope-untrained"),
        ("dynamic", "E3-rope-untrained"),
        ("yarn", "E3-rope-maybe-untrained"),
        ("llama3", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("form", ["midlayer.", "layers.0."])
def test_of_torchspec_the_kind_of_rope_tells_whether_theta_was_trained(
    form: str, kind: str | None, told: str | None
) -> None:
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 128}
    stated = config(
        _torchspec_version="0.1", rope_theta=1e6, rope_scaling=scaling if kind else None
    )
    found = judge_case(case(stated, drafts.top("embed_tokens.weight") | drafts.layer(form)))
    rules = {finding.id for finding in found.told} & {
        "E3-rope-untrained",
        "E3-rope-maybe-untrained",
    }
    assert rules == ({told} if told else set())
    default = judge_case(case({**stated, "rope_theta": 10000.0}))
    assert not {finding.id for finding in default.told} & rules


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize("form", ["rope_theta", "rope_parameters"])
def test_stock_is_wrong_where_it_reads_another_theta_than_was_trained(
    release: str, form: str
) -> None:
    rope = {"rope_theta": 1e6} if form == "rope_theta" else {"rope_parameters": {"rope_theta": 1e6}}
    judgement = judge_case(case(config(modal_type="LLM", **rope), release=release))
    found = {f.id: f.effects for f in judgement.told if f.id.startswith("E3-rope")}
    # transformers 4 takes 10000 where rope_theta is missing, as its trainer did.
    right = release == OLDEST and form == "rope_parameters"
    mended = {"E3-rope-untrained": {"stock": "degraded", "plugin": "serves"}}
    assert found == ({} if right else mended)


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_of_two_thetas_nobody_knows_what_stock_makes(release: str) -> None:
    two = config(rope_theta=5e5, rope_parameters={"rope_theta": 1e6})
    judgement = judge_case(case(two, release=release))
    found = {f.id: f.effects for f in judgement.told if f.id.startswith("E3-rope")}
    assert found == {"E3-rope-conflict": {"stock": "unknown", "plugin": "refuses"}}


@pytest.mark.parametrize(("release", "stock"), [(OLDEST, "degraded"), (NEWEST, None)])
def test_scaling_beside_a_theta_of_the_other_form(release: str, stock: str | None) -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    found = judge_case(case(config(rope_theta=10000, rope_parameters=linear), release=release))
    effects = [f.effects for f in found.told if f.id == "E3-rope-newer-schema"]
    assert effects == ([{"stock": stock, "plugin": "serves"}] if stock else [])


@pytest.mark.parametrize("window", [(), ("--speculative-draft-window-size", "255")])
def test_a_window_of_some_layers_has_no_flag(window: tuple[str, ...]) -> None:
    mixed = ["full_attention", "sliding_attention"]
    stated = config(num_hidden_layers=2, layer_types=mixed, sliding_window=256)
    layers = drafts.layer("layers.0.") | drafts.layer("layers.1.", False, norm="input_layernorm")
    judgement = judge_case(case(stated, drafts.top() | layers, launch=(*LAUNCH, *window)))
    found = next(finding for finding in judgement.told if finding.id == "E3-window-unserved")
    assert found.effects == {"stock": "degraded", "plugin": "refuses"}
    assert found.arguments == ()
    assert found.remedy == "train all of its layers with one window, or none"
    assert found.values["layer_types"] == mixed


def test_a_reduced_vocabulary_without_a_head_is_not_tied() -> None:
    judgement = judge_case(
        case(config(tie_word_embeddings=True), tensors(**{"lm_head.weight": None}))
    )
    found = next(finding for finding in judgement.told if finding.id == "E3-vocab-tied")
    assert found.effects == {"stock": "degraded", "plugin": "refuses"}
    assert judgement.plugin.outcome == "refuses"


def test_the_verdict_is_of_the_side_asked_for() -> None:
    assert judge_case(case(*SPECULATORS)).verdict == "ok"
    assert judge_case(case(*SPECULATORS, plugin=False)).verdict == "error"
    assert judge_case(case(*NATIVE, release=OLDEST, plugin=False)).verdict == "warning"


def test_a_first_layer_input_can_not_be_captured_where_ids_are_guessed() -> None:
    target = type(TARGET)(
        "org/kimi-k2", {**TARGET.config, "architectures": ["DeepseekV3ForCausalLM"]}
    )
    launch = ("--speculative-algorithm", "EAGLE3", "--eagle3-aux-layers", "1:4:5")
    found = judge_case(case(*NATIVE, target=target, launch=launch))
    assert found.plugin.outcome == "refuses"
    assert "[1, 4, 5]" in found.plugin.why
    assert judge_case(case(*NATIVE, launch=launch)).plugin.outcome == "serves"


def test_a_draft_that_takes_no_states_needs_no_fc() -> None:
    without = tensors(**{"fc.weight": None})
    told = {f.id for f in judge_case(case(config(eagle_config=NO_STATES), without)).told}
    assert "E3-names-missing" not in told
    told = {f.id for f in judge_case(case(config(), without)).told}
    assert told == {"E3-names-missing"}


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_map_of_short_floats_is_another_map(dtype: str) -> None:
    header = TensorHeader(dtype, (drafts.DRAFT_VOCAB,))
    found = judge_case(case(NATIVE[0], tensors(d2t=header)))
    assert (found.stock.outcome, found.plugin.outcome) == ("degraded", "refuses")


@pytest.mark.parametrize("stated", [False, True])
def test_what_recurs_is_said_by_its_own_key_alone(stated: bool) -> None:
    config_of = {"norm_before_residual": False}
    doubtful = judge_case(case(config(**config_of, norm_output=stated), tensors()))
    assert (doubtful.stock.outcome, doubtful.plugin.outcome) == ("unknown", "refuses")
    said = {"eagle_config": {"return_hidden_post_norm": stated}}
    found = judge_case(case(config(**config_of, **said), tensors()))
    # SGLang's class does not read that key.
    assert found.stock.outcome == ("degraded" if stated else "serves")
    assert found.plugin.outcome == "serves"


def test_more_tokens_than_there_are_with_a_map_the_plugin_refuses() -> None:
    more = drafts.VOCAB + 64
    changed = tensors(
        **{"lm_head.weight": TensorHeader("BF16", (more, drafts.HIDDEN))},
        d2t=TensorHeader("I64", (more,)),
    )
    found = judge_case(case(config(draft_vocab_size=more), changed, values=None))
    assert (found.stock.outcome, found.plugin.outcome) == ("degraded", "refuses")
    assert f"draft_vocab_size is {more}, more than the {drafts.VOCAB} tokens" in found.plugin.why


@pytest.mark.parametrize(
    ("ids", "stock"),
    [([1, 3, 40], "refuses"), ([3, 40, 50], "degraded"), ([40, 50, 60], "degraded")],
)
def test_too_few_states_fail_in_fc_but_one_alone_passes_it_over(ids: list[int], stock: str) -> None:
    stated = config(eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    judgement = judge_case(case(stated))
    found = next(finding for finding in judgement.told if finding.id == "E3-layers-range")
    assert found.effects == {"stock": stock, "plugin": "refuses"}


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_an_override_of_theta_is_told_where_it_is_read(release: str) -> None:
    override = ("--json-model-override-args", '{"rope_theta": 7.0}')
    judgement = judge_case(case(release=release, launch=(*LAUNCH, *override)))
    told = {finding.id for finding in judgement.told}
    assert ("E3-launch-computation" in told) == (release == OLDEST)


@pytest.mark.parametrize(
    ("algorithm", "stock"), [("EAGLE3", "refuses"), ("EAGLE", "unknown"), ("NGRAM", None)]
)
def test_pipeline_stages_are_refused_for_eagle3(algorithm: str, stock: str | None) -> None:
    launch = ("--speculative-algorithm", algorithm, "--pp-size", "2")
    found = [f for f in judge_case(case(launch=launch)).told if f.id == "E3-launch-pipeline"]
    assert [f.effects["stock"] for f in found] == ([] if stock is None else [stock])
