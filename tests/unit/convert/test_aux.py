"""Aux layer ids: what is written is captured as it was trained, by each class's own rule."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible, Options
from sglang_eagle3_patch.checkpoint.conversion.source import BlockOrder
from sglang_eagle3_patch.facts.store import known_releases
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

KEY = "eagle_aux_hidden_state_layer_ids"
FLAGS = {"norm_before_residual": False}


def trained(tmp_path: Path, ids: list[int] | None, version: str = "0.9.0", **more: Any) -> Path:
    config = drafts.speculators(drafts.TRAINER, version, **{KEY: ids}, **more)
    return written.write(tmp_path / "in", config, drafts.top() | drafts.layer("layers.0."))


def ids_written(source: Path, wanted: Options) -> list[int] | None:
    plan = plan_conversion(source, wanted).plan
    ids: list[int] | None = plan.config["eagle_config"].get(KEY)
    return ids


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize("inputs", [(2, 4, 5), (3, 5, 6), (4, 5, 7), (1, 4, 8)])
def test_every_class_of_every_release_captures_what_was_trained(
    release: str, inputs: tuple[int, ...], tmp_path: Path
) -> None:
    """Or the draft is refused: no ids do it."""
    source = trained(tmp_path, list(inputs))
    by_rule = {rule: name for name, rule in written.options(release).facts.targets.items()}
    capable = {rule: name for rule, name in by_rule.items() if rule.captures and rule.explicit_ids}
    assert capable
    for rule, name in capable.items():
        wanted = written.options(release, target=written.target(name, release), flags=FLAGS)
        ways = [*itertools.combinations(range(written.LAYERS + 1), 3), None]
        if any(rule.captured_layers(way, written.LAYERS) == inputs for way in ways):
            assert rule.captured_layers(ids_written(source, wanted), written.LAYERS) == inputs
        else:
            with pytest.raises(NotConvertible, match="no aux ids make"):
                ids_written(source, wanted)


@pytest.mark.parametrize(
    ("version", "ids", "expected"),
    [("0.9.0", [2, 4, 5], [1, 3, 4]), ("0.3.0", None, [2, 4, 5]), ("0.9.0", None, [1, 3, 4])],
)
def test_what_producers_mean(
    version: str, ids: list[int] | None, expected: list[int], tmp_path: Path
) -> None:
    wanted = written.options(flags=FLAGS)
    assert ids_written(trained(tmp_path, ids, version), wanted) == expected


def test_the_plugin_is_warned_of_ids_that_look_like_a_default(tmp_path: Path) -> None:
    """Speculators before 0.5 trained one layer above the default; its ids by outputs are the
    default by inputs."""
    plan = plan_conversion(trained(tmp_path, None, "0.3.0"), written.options(flags=FLAGS)).plan
    assert any("OPTIONS=aux_layers=3:5:6" in note for note in plan.notes)


class TestWithoutATarget:
    wanted = written.options(target=None, flags=FLAGS)

    def test_classes_that_add_one_are_meant_and_told(self, tmp_path: Path) -> None:
        plan = plan_conversion(trained(tmp_path, [2, 4, 5]), self.wanted).plan
        assert plan.config["eagle_config"][KEY] == [1, 3, 4]
        assert any("give --target for those" in note for note in plan.notes)

    @pytest.mark.parametrize("target", ["KimiK25ForConditionalGeneration", "GptOssForCausalLM"])
    def test_a_recorded_target_with_another_rule_is_asked_for(
        self, target: str, tmp_path: Path
    ) -> None:
        recorded = {"verifier": {"architectures": [target]}}
        source = trained(tmp_path, [2, 4, 5], speculators_config=recorded)
        with pytest.raises(NotConvertible, match=f"{target}.*--target"):
            plan_conversion(source, self.wanted)

    def test_a_default_that_needs_its_layers_is_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(NotConvertible, match="--target"):
            plan_conversion(trained(tmp_path, None, "0.3.0"), self.wanted)

    def test_ids_of_nobody_known_are_asked_for(self, tmp_path: Path) -> None:
        config = drafts.flat(drafts.SGLANG, **drafts.IDS)
        source = written.write(tmp_path / "in", config, drafts.top() | drafts.layer("layers.0."))
        with pytest.raises(NotConvertible, match=r"inputs or outputs.*--target"):
            plan_conversion(source, self.wanted)

    def test_the_users_word_is_enough(self, tmp_path: Path) -> None:
        wanted = written.options(target=None, flags=FLAGS, aux_inputs=(3, 5, 6))
        assert ids_written(trained(tmp_path, None, "0.3.0"), wanted) == [2, 4, 5]


@pytest.mark.parametrize(
    ("ids", "reason"), [([2, 4], "takes 3 .* names 2"), ([2, 4, 4], "there twice")]
)
def test_ids_that_cannot_be_are_refused(ids: list[int], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match=reason):
        plan_conversion(trained(tmp_path, ids), written.options(flags=FLAGS))


def test_a_target_that_cannot_capture_needs_the_plugin(tmp_path: Path) -> None:
    kimi = written.target("KimiK25ForConditionalGeneration", "0.5.9")
    source = trained(tmp_path, [2, 4, 5])
    with pytest.raises(NotConvertible, match="can't capture"):
        plan_conversion(source, written.options("0.5.9", target=kimi, flags=FLAGS))
    wanted = written.options("0.5.9", target=kimi, flags=FLAGS, needs_plugin=True)
    assert ids_written(source, wanted) == [1, 3, 4]


def test_graphs_of_old_releases_are_told_of(tmp_path: Path) -> None:
    plan = plan_conversion(trained(tmp_path, [3, 4, 5]), written.options("0.5.9", flags=FLAGS)).plan
    assert any("--disable-cuda-graph" in note for note in plan.notes)


class TestUnsorted:
    """Engines capture in layer order: blocks of fc that were trained in another must follow."""

    headers = (
        drafts.top()
        | drafts.layer("layers.0.")
        | drafts.floats(
            **{
                "fc_norm.0.weight": (drafts.HIDDEN,),
                "fc_norm.1.weight": (drafts.HIDDEN,),
                "fc_norm.2.weight": (drafts.HIDDEN,),
                "input_norm.weight": (3 * drafts.HIDDEN,),
            }
        )
    )

    def source(self, tmp_path: Path, config: drafts.Config) -> Path:
        return written.write(tmp_path / "in", config, self.headers)

    def listed(self, tmp_path: Path) -> Path:
        config = drafts.speculators(
            drafts.TRAINER, "0.9.0", **{KEY: [5, 2, 4]}, norm_before_fc=True, fc_norm=True
        )
        return self.source(tmp_path, config)

    def test_fc_and_its_norms_are_put_in_layer_order(self, tmp_path: Path) -> None:
        import torch

        source = self.listed(tmp_path)
        conversion = written.convert(source, tmp_path / "out", written.options(flags=FLAGS))
        old, new = written.read(source), written.read(tmp_path / "out")

        def blocks(value: bytes, rows: int) -> torch.Tensor:
            tensor = torch.frombuffer(bytearray(value), dtype=torch.int16)
            return tensor.reshape(rows, 3, drafts.HIDDEN)

        for name, rows in (("fc.weight", drafts.HIDDEN), ("input_norm.weight", 1)):
            expected = blocks(old[name], rows)[:, [1, 2, 0]]
            assert torch.equal(blocks(new[name], rows), expected)
        assert [new[f"fc_norm.{i}.weight"] for i in range(3)] == [
            old[f"fc_norm.{i}.weight"] for i in (1, 2, 0)
        ]
        assert written.config_of(tmp_path / "out")["eagle_config"][KEY] == [1, 3, 4]
        assert any("not ascending" in note for note in conversion.plan.notes)
        unchanged = old.keys() - {"fc.weight", "input_norm.weight"}
        unchanged -= {f"fc_norm.{i}.weight" for i in range(3)}
        assert all(old[name] == new[name] for name in unchanged)

    def test_unless_the_trainer_captured_in_layer_order(self, tmp_path: Path) -> None:
        eagle = {**drafts.EAGLE_CONFIG, KEY: [4, 1, 3]}
        source = written.write(
            tmp_path / "in",
            drafts.flat(drafts.SGLANG, eagle_config=eagle),
            drafts.top() | drafts.layer("midlayer."),
        )
        plan = plan_conversion(source, written.options()).plan
        assert plan.config["eagle_config"][KEY] == [1, 3, 4]
        assert not [move for move in plan.moves if move.transform]
        plan = plan_conversion(source, written.options(listed_order=True)).plan
        assert [m.name for m in plan.moves if m.transform] == ["fc.weight"]

    def test_the_users_word_on_the_order(self, tmp_path: Path) -> None:
        wanted = written.options(flags=FLAGS, listed_order=False)
        plan = plan_conversion(self.listed(tmp_path), wanted).plan
        assert not [move for move in plan.moves if move.transform]

    def test_pieces_of_any_size_give_the_same(self) -> None:
        reorder = BlockOrder((2, 0, 1), 2)
        rows = bytes(range(24))
        whole = reorder(0, rows)
        assert whole[:6] == bytes([4, 5, 0, 1, 2, 3])
        assert b"".join(reorder(at, rows[at : at + 6]) for at in range(0, 24, 6)) == whole
