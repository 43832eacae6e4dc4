"""The table of releases agrees with itself, with the locks and with what is expected of each."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import environment_builder
from tests.cpu_sglang.environment_builder import pinned
from tests.cpu_sglang.releases import DEFAULT, IN_CI, RELEASES, find


def test_table_has_every_release_once_in_order() -> None:
    versions = list(RELEASES)
    assert len(versions) == 19
    assert (versions[0], versions[-1], DEFAULT) == ("0.5.9", "0.5.23", "0.5.23")
    keys = [
        tuple(int(part) for part in version.replace("post", "").split(".")) for version in versions
    ]
    assert keys == sorted(set(keys))
    assert set(IN_CI) <= set(versions)


def test_table_agrees_with_the_quirks_the_expectation_knows() -> None:
    expectation = pytest.importorskip("tests.cpu_sglang.pair.expectation")
    for release in RELEASES.values():
        assert release.worker in release.quirks, release
        assert set(release.quirks.values()) <= set(expectation.QUIRKS), release


@pytest.mark.parametrize(
    ("version", "route", "transformers", "worker", "quirks"),
    [
        (
            "0.5.9",
            "triton",
            "4.57.1",
            "v1",
            {"v1": "positions_ahead_counted_twice", "v2": "positions_ahead"},
        ),
        (
            "0.5.11",
            "triton",
            "5.12.1",
            "v2",
            {"v1": "positions_ahead_counted_twice", "v2": "positions_ahead"},
        ),
        ("0.5.12.post1", "triton", "5.12.1", "v2", {"v1": "counted_twice", "v2": "plain"}),
        ("0.5.15.post1", "triton", "5.12.1", "v2", {"v2": "plain"}),
        ("0.5.16", "cpu", "5.12.1", "v2", {"v2": "plain"}),
        ("0.5.22", "cpu", None, "v2", {"v2": "plain"}),
    ],
)
def test_table_rows_at_the_changes(
    version: str, route: str, transformers: str | None, worker: str, quirks: dict[str, str]
) -> None:
    release = find(version)
    assert (release.route, release.transformers, release.worker) == (route, transformers, worker)
    assert dict(release.quirks) == quirks


def test_every_transformers_version_in_the_table_has_a_lock_that_pins_it() -> None:
    for version in {release.transformers for release in RELEASES.values()} - {None}:
        lock = (environment_builder.LOCKS / f"transformers-{version}.txt").read_text()
        assert f"transformers=={version}" in lock.splitlines()
    assert pinned("sglang") == DEFAULT


def test_unknown_release_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'0\.5\.8'.*choose one of: 0\.5\.9, .*, 0\.5\.23$"):
        find("0.5.8")
