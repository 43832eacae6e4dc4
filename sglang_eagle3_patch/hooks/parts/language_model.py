"""Lets a wrapper around a language model answer what speculation asks of a target."""

from __future__ import annotations

from typing import Any

# What EAGLE workers ask of a target model.
ASKED = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")


def lend_methods(wrapper: Any) -> list[str]:
    """Give `wrapper` the methods of `ASKED` that it lacks and its `language_model` has.

    They are set on the instance, bound to the language model; returns their names.
    """
    language_model = getattr(wrapper, "language_model", None)
    lent = [name for name in ASKED if not hasattr(wrapper, name) and hasattr(language_model, name)]
    for name in lent:
        setattr(wrapper, name, getattr(language_model, name))
    return lent
