"""Rewrites a draft into the form that a SGLang release loads; `convert` is the way in."""
