"""Run by a test in a process of its own: a Ray node, kept until standard input is closed.

    python keep_ray.py FOLDER GPUS

Prints the address of the node, whose files are in FOLDER and which deals out so many GPUs.
"""

from __future__ import annotations

import sys

SMALLEST_STORE = 80 * 2**20
"""Bytes. Nothing is put in it, but Ray wants 75 MiB."""


def main(folder: str, gpus: str) -> None:
    import ray

    context = ray.init(
        num_cpus=2,
        num_gpus=int(gpus),
        include_dashboard=False,
        object_store_memory=SMALLEST_STORE,
        _temp_dir=folder,
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
