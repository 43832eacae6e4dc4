"""Observes all that is compared at the release of this environment; prints it as JSON, last of all.

Run by `tests/contract/test_doctor_beyond_classes.py`, with the stand-in's variables and none of the
plugin's.
"""

from __future__ import annotations

import gc
import json
import tempfile
import traceback
from pathlib import Path

import sglang_eagle3_patch
from sglang_eagle3_patch.parity.sglang_draft import become_rank
from tests.contract.beyond.cases import compared
from tests.contract.beyond.observed import observed_at, seen
from tests.cpu_sglang.pair import forms


def main() -> None:
    import sglang

    become_rank(str(forms.TARGET))
    release, found = sglang.__version__, {}
    with tempfile.TemporaryDirectory() as folder:
        given = sorted(compared(release, observed_at(release)), key=lambda one: one.side != "stock")
        for number, one in enumerate(given):
            if one.side == "plugin":
                sglang_eagle3_patch.activate()
            place = Path(folder) / str(number)
            place.mkdir()
            gc.freeze()
            try:
                found[one.id] = seen(one, place)
            except Exception:  # noqa: BLE001 - the others are still to be told
                found[one.id] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
