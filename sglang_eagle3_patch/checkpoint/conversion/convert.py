"""Converts a draft checkpoint to the form that a SGLang release loads: renames by rewriting
headers, and streams the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sglang_eagle3_patch.checkpoint.config_file import read_config
from sglang_eagle3_patch.checkpoint.conversion.options import Options
from sglang_eagle3_patch.checkpoint.conversion.plan import Plan, make_plan
from sglang_eagle3_patch.checkpoint.conversion.source import Stored, stored_tensors
from sglang_eagle3_patch.checkpoint.conversion.streaming import Progress
from sglang_eagle3_patch.checkpoint.conversion.write import write_folder
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, read_file_header
from sglang_eagle3_patch.checkpoint.spec import DraftSpec

PROVENANCE = "sglang_eagle3_patch.convert"


@dataclass(frozen=True)
class Conversion:
    """A draft read and planned for; nothing is written yet. `size` is in bytes."""

    source: Path
    spec: DraftSpec
    plan: Plan
    options: Options

    @property
    def size(self) -> int:
        """Bytes of all tensors to be written."""
        return sum(move.source.header.size for move in self.plan.moves)

    def write(
        self,
        out: Path,
        *,
        force: bool = False,
        verify: bool = False,
        progress: Progress = lambda _: None,
    ) -> list[Path]:
        """Write it to the folder `out`; see `write_folder` for what is raised."""
        return write_folder(
            out,
            self.plan,
            self.source,
            {PROVENANCE: json.dumps(self._provenance(), ensure_ascii=False)},
            force=force,
            verify=verify,
            progress=progress,
        )

    def _provenance(self) -> dict[str, object]:
        config = (self.source / "config.json").read_bytes()
        files = sorted({move.source.file for move in self.plan.moves})
        return {
            "version": self.options.tool_version,
            "sglang": self.options.facts.release,
            "to": self.options.to,
            "source_config_sha256": hashlib.sha256(config).hexdigest(),
            "source_header_sha256": {
                file.name: read_file_header(file).digest
                for file in files
                if file.suffix == ".safetensors"
            },
            "renamed": self.plan.renamed,
            "changed": [m.name for m in self.plan.moves if m.transform],
            "done": [*self.plan.changes],
            "dropped": [*self.plan.dropped],
        }


def plan_conversion(
    source: Path, options: Options, pickled: Mapping[str, Stored] | None = None
) -> Conversion:
    """Read the draft in `source` and decide what becomes of it.

    `pickled` are the tensors of a folder without safetensors files, read by whoever has torch.
    Raises `CheckpointUnreadable` for what can't be read, `NotConvertible` for what can't be
    expressed.
    """
    config = read_config(source / "config.json")
    tensors = stored_tensors(source) or dict(pickled or {})
    if not tensors:
        raise CheckpointUnreadable(
            f"{source} holds no weights (*.safetensors or *.bin). Fix: give the draft's folder."
        )
    spec = DraftSpec.of(config, {name: t.header for name, t in tensors.items()}, source)
    spec = replace(spec, told_rope=options.told_rope)
    return Conversion(source, spec, make_plan(spec, tensors, options), options)
