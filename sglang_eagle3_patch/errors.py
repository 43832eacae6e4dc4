"""The one exception that protects numbers, and the form of its text."""

from __future__ import annotations

from sglang_eagle3_patch.settings import PREFIX


class DraftError(ValueError):
    """A draft that would not compute what it was trained to compute.

    The text names the patch that refuses, what is wrong with the values, one action that mends
    it, and the switch that turns the refusal off: a false alarm must not cost a deployment.
    """

    def __init__(self, patch: str, problem: str, fix: str) -> None:
        self.patch, self.problem, self.fix = patch, problem, fix
        super().__init__(
            f"sglang-eagle3-patch: {patch}: {problem.rstrip('.')}. Fix: {fix.rstrip('.')}. "
            f"(To run without this check: {PREFIX}=-{patch})"
        )
