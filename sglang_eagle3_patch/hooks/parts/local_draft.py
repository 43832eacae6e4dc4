"""The draft checkpoint behind a path or hub id, as far as it is on this machine."""

from __future__ import annotations

import logging

from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.spec import DraftSpec

logger = logging.getLogger(__name__)


def read_draft(name_or_path: str, revision: str | None, asker: str) -> DraftSpec | None:
    """Return what the folder holds, or None when there is none or it can't be read.

    Read anew each time: a hub draft's weights may arrive later than its config. An unreadable
    file is a warning in the name of the patch `asker`: SGLang is about to read the same one.
    """
    folder = local_folder(name_or_path, revision)
    if folder is None:
        return None
    try:
        return DraftSpec.read(folder)
    except CheckpointUnreadable as error:
        logger.warning("sglang-eagle3-patch: %s: %s", asker, error)
        return None
