"""The bookkeeping of a hook, whose trouble never becomes the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def safely(told: str, function: Callable[..., Any], *args: Any) -> None:
    """Call our own `function`; what it raises is logged after `told`, each time, and goes no
    further."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001
        logger.warning("%s: %r", told, error)
