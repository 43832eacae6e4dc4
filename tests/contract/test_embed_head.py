"""embed-head: whose embedding and head a real draft class ends up with, and what `d2t` may hold."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import mla_config, mla_tensors
from tests.contract.test_eagle3_mode import CHAIN
from tests.cpu_sglang.pair import forms

VOCAB, REDUCED, WIDTH = 320, 130, 128
# A target's tensors: nothing of a draft's.
EMBED, HEAD = torch.full((VOCAB, WIDTH), 3.0), torch.full((VOCAB, WIDTH), 4.0)
KEPT_IDS = torch.cat([torch.arange(100), torch.arange(290, VOCAB)])


def with_embedding(tensors: forms.Tensors) -> forms.Tensors:
    return {**tensors, "embed_tokens.weight": torch.full((VOCAB, WIDTH), 5.0)}


def without(tensors: forms.Tensors, name: str) -> forms.Tensors:
    return {key: value for key, value in tensors.items() if key != name}


def reduced(d2t: torch.Tensor, t2d: torch.Tensor | None) -> tuple[forms.Tensors, dict[str, Any]]:
    tensors = forms.drafter_weights()
    tensors |= {"lm_head.weight": tensors["lm_head.weight"][:REDUCED], "d2t": d2t}
    del tensors["t2d"]
    if t2d is not None:
        tensors["t2d"] = t2d
    return tensors, {**forms.sglang_config(), "draft_vocab_size": REDUCED}


def marks(ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)


def parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.clone(), requires_grad=False)


def share(draft: Any) -> None:
    """What a worker does with the target's tensors once both models are loaded."""
    if draft.load_lm_head_from_target:
        draft.set_embed_and_head(parameter(EMBED), parameter(HEAD))
    else:
        draft.set_embed(parameter(EMBED))


@pytest.fixture
def no_cuda_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    # The MLA class ends in calls that need a GPU.
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


CLASSES = [
    pytest.param(forms.sglang_config, forms.drafter_weights, id="llama"),
    pytest.param(mla_config, mla_tensors, id="mla"),
]


@pytest.mark.usefixtures("plugin", "no_cuda_calls")
@pytest.mark.parametrize(("config_of", "tensors_of"), CLASSES)
class TestOwnTensors:
    def loaded(
        self, make_draft: DraftFactory, config: dict[str, Any], tensors: forms.Tensors
    ) -> Any:
        draft = make_draft(config)
        draft.load_weights(iter(tensors.items()))
        share(draft)
        return draft

    def test_an_embedding_that_differs_is_kept(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        draft = self.loaded(make_draft, config_of(), with_embedding(tensors_of()))
        assert torch.equal(draft.model.embed_tokens.weight[:VOCAB], 5 * torch.ones(VOCAB, WIDTH))
        assert "embedding: the draft's own; head: the draft's own" in caplog.text

    def test_an_equal_one_is_shared(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        draft = make_draft(config_of())
        draft.load_weights(iter({**tensors_of(), "embed_tokens.weight": EMBED}.items()))
        targets = parameter(draft.model.embed_tokens.weight)
        draft.set_embed(targets)
        assert draft.model.embed_tokens.weight is targets
        assert "embedding: the target's, equal to the draft's own" in caplog.text

    def test_one_in_another_dtype_is_shared(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        table = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(5))
        draft = make_draft(config_of())
        rounded = table.bfloat16().float()
        draft.load_weights(iter({**tensors_of(), "embed_tokens.weight": rounded}.items()))
        draft.set_embed(parameter(table))
        assert "embedding: the target's, equal to the draft's own" in caplog.text

    @pytest.mark.parametrize("trained", [False, True])
    def test_an_untrained_one_gives_way_unless_the_config_says_trained(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
        caplog: pytest.LogCaptureFixture,
        trained: bool,
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        theirs, ours = (torch.randn(VOCAB, WIDTH, generator=generator) for _ in range(2))
        draft = make_draft({**config_of(), "embed_requires_grad": trained})
        draft.load_weights(iter({**tensors_of(), "embed_tokens.weight": ours}.items()))
        draft.set_embed(parameter(theirs))
        kept = ours if trained else theirs
        assert torch.equal(draft.model.embed_tokens.weight[:VOCAB], kept)
        assert ("has nothing to do with the target's" in caplog.text) is not trained

    def test_without_one_the_targets_is_shared(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
    ) -> None:
        draft = self.loaded(make_draft, config_of(), tensors_of())
        assert torch.equal(draft.model.embed_tokens.weight, EMBED)

    def test_a_head_under_a_null_vocabulary_is_kept(
        self,
        make_draft: DraftFactory,
        config_of: Callable[[], dict[str, Any]],
        tensors_of: Callable[[], forms.Tensors],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        # No headers here, as of a hub draft at its first start: what came decides.
        caplog.set_level("INFO")
        tensors = tensors_of()
        config = {**config_of(), "draft_vocab_size": None}
        draft = self.loaded(make_draft, config, tensors)
        assert torch.equal(draft.lm_head.weight[:VOCAB], tensors["lm_head.weight"])
        assert torch.equal(draft.model.embed_tokens.weight, EMBED)
        assert "embedding: the target's; head: the draft's own" in caplog.text


def _compare_a_part(rank: int, folder: str) -> None:
    """Run in a process of its own: one rank of two compares its half of the tables."""
    import sglang.srt.distributed as distributed

    from sglang_eagle3_patch.hooks.embed_head import compared

    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2
    )
    group = SimpleNamespace(world_size=2, device_group=torch.distributed.group.WORLD)
    distributed.get_tp_group = lambda: group
    targets = torch.ones(50, WIDTH)
    found = compared(targets * (1.02 if rank else 1.0), targets)
    Path(folder, str(rank)).write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Threads of libraries that live to the interpreter's end now and then abort it there.
    os._exit(0)


def test_ranks_decide_by_the_whole_table(tmp_path: Path) -> None:
    # By its own half the first would take the target's table, and the second the draft's own.
    torch.multiprocessing.spawn(_compare_a_part, (str(tmp_path),), nprocs=2)
    both = [json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    assert both[0] == both[1]
    deviation, likeness = both[0]
    assert deviation == pytest.approx(0.02 / 2**0.5, rel=1e-4)
    assert likeness == pytest.approx(1)


@pytest.mark.usefixtures("rank", "no_cuda_calls")
class TestStockOverwrites:
    def test_a_trained_embedding(self, make_draft: DraftFactory) -> None:
        draft = make_draft(forms.sglang_config())
        draft.load_weights(iter(with_embedding(forms.drafter_weights()).items()))
        share(draft)
        assert torch.equal(draft.model.embed_tokens.weight, EMBED)

    def test_a_head_under_a_null_vocabulary(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "draft_vocab_size": None})
        draft.load_weights(iter(forms.drafter_weights().items()))
        share(draft)
        assert torch.equal(draft.lm_head.weight, HEAD)


class TestConfigByTensors:
    @pytest.fixture
    def read(self, rank: None, tmp_path: Path) -> Callable[..., Any]:
        """Return the config object of a folder with these tensors and this config."""

        def read(tensors: forms.Tensors, **fields: Any) -> Any:
            from sglang.srt.utils.hf_transformers_utils import get_config

            config = {**forms.sglang_config(), **fields}
            config = {key: value for key, value in config.items() if value is not ...}
            folder = forms.write(tmp_path / "draft", tensors, config)
            return get_config(str(folder), trust_remote_code=False)

        return read

    @pytest.mark.parametrize("stated", [None, ...], ids=["null", "absent"])
    @pytest.mark.usefixtures("plugin")
    def test_the_vocabulary_is_that_of_the_head(self, read: Any, stated: Any) -> None:
        tensors = forms.drafter_weights()
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:REDUCED]
        assert read(tensors, draft_vocab_size=stated).draft_vocab_size == REDUCED

    @pytest.mark.parametrize("stated", [VOCAB, None, ...], ids=["whole", "null", "absent"])
    @pytest.mark.usefixtures("plugin")
    def test_without_a_head_the_targets_is_shared(
        self, read: Any, make_draft: DraftFactory, stated: Any
    ) -> None:
        tensors = without(without(forms.drafter_weights(), "lm_head.weight"), "d2t")
        config = read(tensors, draft_vocab_size=stated)
        assert config.draft_vocab_size is None
        draft = make_draft({**forms.sglang_config(), "draft_vocab_size": None})
        draft.load_weights(iter(tensors.items()))
        share(draft)
        assert torch.equal(draft.lm_head.weight, HEAD)

    @pytest.mark.usefixtures("plugin")
    def test_a_reduced_vocabulary_without_a_head_is_no_share(self, read: Any) -> None:
        tensors = without(forms.drafter_weights(), "lm_head.weight")
        tensors["d2t"] = KEPT_IDS - torch.arange(REDUCED)
        assert read(tensors, draft_vocab_size=...).draft_vocab_size == REDUCED
        assert read(tensors, draft_vocab_size=REDUCED).draft_vocab_size == REDUCED

    @pytest.mark.usefixtures("plugin")
    def test_a_head_of_its_own_is_not_tied(self, read: Any) -> None:
        assert not read(forms.drafter_weights(), tie_word_embeddings=True).tie_word_embeddings

    @pytest.mark.usefixtures("plugin")
    def test_a_draft_without_a_head_stays_tied(self, read: Any) -> None:
        tensors = without(forms.drafter_weights(), "lm_head.weight")
        config = read(tensors, tie_word_embeddings=True)
        assert config.tie_word_embeddings
        assert config.draft_vocab_size == VOCAB

    @pytest.mark.usefixtures("plugin")
    def test_a_null_width_of_the_target_says_nothing(self, read: Any) -> None:
        assert not hasattr(
            read(forms.drafter_weights(), target_hidden_size=None), "target_hidden_size"
        )

    @pytest.mark.usefixtures("plugin")
    def test_a_config_that_fits_is_left_alone(
        self, read: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        read(forms.drafter_weights())
        assert "embed-head" not in caplog.text

    @pytest.mark.usefixtures("plugin")
    def test_the_target_is_left_alone(self, rank: None, caplog: pytest.LogCaptureFixture) -> None:
        from sglang.srt.utils.hf_transformers_utils import get_config

        caplog.set_level("INFO")
        get_config(str(forms.TARGET), trust_remote_code=True)
        assert "embed-head" not in caplog.text

    @pytest.mark.usefixtures("plugin")
    def test_a_reduced_vocabulary_without_a_head_is_not_tied(
        self, read: Any, make_draft: DraftFactory
    ) -> None:
        tensors, config = reduced(KEPT_IDS - torch.arange(REDUCED), None)
        headless = without(tensors, "lm_head.weight")
        assert read(
            headless, draft_vocab_size=REDUCED, tie_word_embeddings=True
        ).tie_word_embeddings
        draft = make_draft({**config, "tie_word_embeddings": True})
        with pytest.raises(DraftError, match=r"its 130 logits .* 320 rows.*restore lm_head.weight"):
            draft.load_weights(iter(headless.items()))

    @pytest.mark.usefixtures("plugin")
    def test_a_whole_vocabulary_may_be_tied(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "tie_word_embeddings": True})
        draft.load_weights(iter(without(forms.drafter_weights(), "lm_head.weight").items()))
        share(draft)
        assert torch.equal(draft.lm_head.weight, EMBED)

    def test_stock_drops_a_head_that_the_config_calls_tied(
        self, read: Any, make_draft: DraftFactory
    ) -> None:
        tensors = forms.drafter_weights()
        assert read(tensors, tie_word_embeddings=True).tie_word_embeddings
        draft = make_draft({**forms.sglang_config(), "tie_word_embeddings": True})
        draft.load_weights(iter(tensors.items()))
        assert draft.lm_head is draft.model.embed_tokens

    def test_stock_needs_the_vocabulary_stated(self, read: Any, make_draft: DraftFactory) -> None:
        config = forms.sglang_config()
        del config["draft_vocab_size"]
        with pytest.raises(AttributeError, match="draft_vocab_size"):
            make_draft(config)


@pytest.mark.usefixtures("plugin")
def test_another_width_needs_an_embedding_of_its_own(make_draft: DraftFactory) -> None:
    config = {**forms.sglang_config(), "target_hidden_size": 64}
    tensors = forms.drafter_weights()
    tensors["fc.weight"] = tensors["fc.weight"][:, : 3 * 64]
    with pytest.raises(DraftError, match=r"1 missing: embed_tokens.weight \[320, 128\]"):
        make_draft(config).load_weights(iter(tensors.items()))
    draft = make_draft(config)
    draft.load_weights(iter(with_embedding(tensors).items()))
    share(draft)
    assert torch.equal(draft.model.embed_tokens.weight[:VOCAB], 5 * torch.ones(VOCAB, WIDTH))


OFFSETS = KEPT_IDS - torch.arange(REDUCED)
TWICE = OFFSETS.clone()
TWICE[7] -= 1
EVEN = torch.arange(REDUCED)  # offsets to even ids; as ids, the first ones


@pytest.mark.usefixtures("plugin")
class TestVocabularyMap:
    def load(self, make_draft: DraftFactory, d2t: torch.Tensor, t2d: torch.Tensor | None) -> Any:
        tensors, config = reduced(d2t, t2d)
        draft = make_draft(config)
        draft.load_weights(iter(tensors.items()))
        return draft

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    @pytest.mark.parametrize("marked", [True, False])
    def test_offsets_are_taken(
        self, make_draft: DraftFactory, marked: bool, dtype: torch.dtype
    ) -> None:
        draft = self.load(make_draft, OFFSETS.to(dtype), marks(KEPT_IDS) if marked else None)
        assert draft.hot_token_id.tolist() == KEPT_IDS.tolist()

    @pytest.mark.parametrize("marked", [True, False])
    def test_target_ids_are_made_offsets(
        self, make_draft: DraftFactory, marked: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = self.load(make_draft, KEPT_IDS.clone(), marks(KEPT_IDS) if marked else None)
        assert draft.hot_token_id.tolist() == KEPT_IDS.tolist()
        assert "d2t holds target ids" in caplog.text

    def test_marks_tell_what_either_reading_would_fit(self, make_draft: DraftFactory) -> None:
        draft = self.load(make_draft, EVEN.clone(), marks(2 * EVEN))
        assert draft.hot_token_id.tolist() == (2 * EVEN).tolist()
        draft = self.load(make_draft, EVEN.clone(), marks(EVEN))
        assert draft.hot_token_id.tolist() == EVEN.tolist()

    @pytest.mark.parametrize(
        ("d2t", "t2d", "told"),
        [
            pytest.param(torch.zeros(REDUCED).long(), None, "all zeros", id="zeros"),
            pytest.param(
                torch.zeros(REDUCED).long(), torch.zeros(VOCAB).bool(), "all zeros", id="buffers"
            ),
            pytest.param(OFFSETS + 200, None, "outside 0 to 319", id="out of range"),
            pytest.param(TWICE, None, "occur twice", id="twice"),
            pytest.param(EVEN, None, "target ids would fit too", id="ambiguous"),
            pytest.param(OFFSETS, marks(torch.arange(REDUCED)), "t2d does not mark", id="marks"),
            pytest.param(OFFSETS.float(), None, "no flat list of integers", id="floats"),
        ],
    )
    def test_what_maps_nowhere_is_refused(
        self, make_draft: DraftFactory, d2t: torch.Tensor, t2d: torch.Tensor | None, told: str
    ) -> None:
        with pytest.raises(DraftError, match=f"embed-head: d2t .*130 .*320.*{told}") as refusal:
            self.load(make_draft, d2t.clone(), t2d)
        assert "SGLANG_EAGLE3_PATCH=-embed-head" in str(refusal.value)

    def test_zeros_that_the_marks_agree_with_are_the_first_ids(
        self, make_draft: DraftFactory
    ) -> None:
        draft = self.load(make_draft, torch.zeros(REDUCED).long(), marks(torch.arange(REDUCED)))
        assert draft.hot_token_id.tolist() == list(range(REDUCED))

    def test_marks_of_another_number_are_passed_over(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = self.load(make_draft, OFFSETS.clone(), torch.zeros(VOCAB).bool())
        assert draft.hot_token_id.tolist() == KEPT_IDS.tolist()
        assert "t2d marks 0 of 320 tokens, but the draft knows 130 of 320" in caplog.text

    def test_a_map_of_another_length_is_told_by_the_accounting(
        self, make_draft: DraftFactory
    ) -> None:
        with pytest.raises(DraftError, match=r"draft-weights: .*d2t \[129\], wanted \[130\]"):
            self.load(make_draft, OFFSETS[:-1].clone(), None)

    def test_a_weight_update_is_not_judged(self, make_draft: DraftFactory) -> None:
        draft = self.load(make_draft, OFFSETS.clone(), marks(KEPT_IDS))
        draft.load_weights(iter([("d2t", torch.zeros(REDUCED).long())]))
        assert draft.hot_token_id.tolist() == list(range(REDUCED))


def test_stock_adds_to_target_ids_once_more(make_draft: DraftFactory) -> None:
    tensors, config = reduced(KEPT_IDS.clone(), marks(KEPT_IDS))
    draft = make_draft(config)
    draft.load_weights(iter(tensors.items()))
    assert int(draft.hot_token_id.max()) >= VOCAB


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("algorithm", ["EAGLE3", "EAGLE"])
def test_no_draft_is_served_over_pipeline_stages(
    native_draft: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Over stages SGLang would load the target's embedding in the place of the draft's own. Every
    # release refuses it for EAGLE3, and EAGLE is taken for that. When this fails, it can be served.
    from sglang.srt.server_args import ServerArgs

    monkeypatch.setenv("SGLANG_ENABLE_PP_SPEC", "1")
    arguments = ServerArgs(
        model_path=str(forms.TARGET),
        device="cpu",
        trust_remote_code=True,
        speculative_draft_model_path=str(native_draft),
        speculative_algorithm=algorithm,
        pp_size=2,
        disable_overlap_schedule=True,
        **CHAIN,
    )
    arguments.resolve_once()
    with pytest.raises(AssertionError, match="Pipeline parallelism currently only supports EAGLE "):
        arguments.check_server_args()
