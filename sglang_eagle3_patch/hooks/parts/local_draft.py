"""The draft checkpoint behind a path, a hub id or launch arguments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.checkpoint.hub import hub_headers
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.errors import DraftError

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


def with_hub_headers(spec: DraftSpec, name: str, revision: str | None) -> DraftSpec:
    """Return the spec with the headers that the hub has for the draft `name`, where it has none.

    On a first start the draft's weights are fetched after the target has been loaded.
    The same spec comes back for a local folder, and where the hub can't be read: SGLang fetches
    the weights from it next, and its error is the user's.
    """
    if spec.tensors or spec.folder == Path(name):
        return spec
    try:
        return DraftSpec.of(spec.config, hub_headers(name, revision), spec.folder)
    except Exception as error:  # noqa: BLE001 - its client raises all sorts
        logger.info("sglang-eagle3-patch: the headers of %s can't be read: %s", name, error)
        return spec


def read_config_of(server_args: Any, asker: str) -> dict[str, Any] | None:
    """Return the config of the draft that `ServerArgs` name, as `read_config` does."""
    revision = getattr(server_args, "speculative_draft_model_revision", None)
    return read_config(server_args.speculative_draft_model_path, revision, asker)


def read_config(draft: str, revision: str | None, asker: str) -> dict[str, Any] | None:
    """Return a draft's config, as transformers reads it with every hook; None when it can't be
    read: SGLang reads it next, and its error is the user's.

    Raises `DraftError` when a patch refuses the config.
    """
    from transformers import PretrainedConfig

    config: dict[str, Any]
    try:
        config, _ = PretrainedConfig.get_config_dict(draft, revision=revision)
    except DraftError:
        raise
    except Exception as error:  # noqa: BLE001 - said above
        logger.debug("sglang-eagle3-patch: %s: %s can't be read: %s", asker, draft, error)
        return None
    return config
