"""The doctor's rules: each judges one thing about a draft, its target, a release and a launch.

A rule is a short function that is given a `Case` and gives an `Answer`; its docstring is its
explanation, from which `docs/rules.md` is made. Importing this package registers all of them.
"""

from sglang_eagle3_patch.checkpoint.rules import (
    config,
    embedding,
    files,
    flags,
    launching,
    layers,
    names,
    positions,
    releases,
    rope,
    shapes,
    targets,
    variants,
    vocabulary,
)
from sglang_eagle3_patch.checkpoint.rules.answers import RULES, Answer, Rule
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.judgement import Finding, Judgement, judge_case

SUBJECTS = (
    config,
    files,
    names,
    shapes,
    embedding,
    vocabulary,
    flags,
    variants,
    layers,
    rope,
    positions,
    targets,
    launching,
    releases,
)

__all__ = ["RULES", "SUBJECTS", "Answer", "Case", "Finding", "Judgement", "Rule", "judge_case"]
