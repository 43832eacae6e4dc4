#!/usr/bin/env bash
# The one command for people and CI: a demonstration, the checks, a CPU environment, or a launch.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
    cat <<'USAGE'
usage: launch.sh demo [--sglang V] [--json FILE]  damaged drafts on a CPU: stock SGLang, then patched
       launch.sh test [PYTEST ARGUMENTS]          lint, types, import rules, tests
       launch.sh test --matrix                    every release and worker on real servers: an hour;
                                                  the results and the README's table are written
       launch.sh bench NAME [ARGUMENTS]           a measurement: startup, doctor, convert, acceptance
       launch.sh run [--sglang V] -- CMD ...      run CMD where `python` has SGLang V on a CPU
       launch.sh ARGUMENTS                        launch a server, patched, in your own Python

demo, test and run build what they need in .cache/cpu_sglang (8 GB, about 4 minutes, once); name
another folder in SGLANG_EAGLE3_CPU_CACHE. They need Python 3.11 or newer and pip's package index.
The last form is `python3 -m sglang_eagle3_patch.launch_server ARGUMENTS`, with the arguments of
`python3 -m sglang.launch_server`; set PYTHON to use another python than python3. Kimi-K2.5 on eight
GPUs, its draft judged first (add --eagle3-dry-run to judge it alone, without a GPU):

  ./launch.sh \
    --model-path moonshotai/Kimi-K2.5 --trust-remote-code --tp 8 \
    --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
    --mem-fraction-static 0.85 --host 0.0.0.0 --port 30000

docs/launching.md tells of several nodes, replicas, Ray and containers.
USAGE
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local name
    for name in python3.11 python3.12 python3; do
        # A version manager's stand-in may be on PATH and still not start.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer (tried python3.11, python3.12, python3); install one"
}

# -P: a folder `tests` where the caller happens to be must not be taken for ours.
environments() {
    local python
    python=$(find_python)
    export PYTHONPATH=$here
    exec "$python" -P -m tests.cpu_sglang.environments "$@"
}

demo() {
    local -a arguments=()
    while (($#)); do
        case $1 in
        --json)
            (($# > 1)) || fail "--json needs a file name"
            arguments+=(--json "$(absolute "$2")")
            shift
            ;;
        --json=*) arguments+=(--json "$(absolute "${1#--json=}")") ;;
        *) arguments+=("$1") ;;
        esac
        shift
    done
    cd -- "$here"
    environments run -- python -m tests.cpu_sglang.demo "${arguments[@]}"
}

# The demo runs in the repository; a file is named from where the caller is.
absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$PWD/$1" ;;
    esac
}

check() {
    local name=$1
    shift
    printf '[%4d s] %s: %s\n' "$SECONDS" "$name" "$*"
    if "$@"; then
        return
    fi
    failed+=("$name")
}

run_checks() {
    local -a failed=()
    cd -- "$here"
    check style ruff check .
    check format ruff format --check .
    check types mypy
    check imports lint-imports
    check tests pytest "$@"
    if ((${#failed[@]})); then
        printf '[%4d s] failed: %s\n' "$SECONDS" "${failed[*]}"
        exit 1
    fi
    printf '[%4d s] all checks passed\n' "$SECONDS"
}

case ${1-} in
demo)
    shift
    demo "$@"
    ;;
test)
    shift
    if [[ ${1-} == --matrix ]]; then
        shift
        environments run -- "$BASH" "$here/launch.sh" --matrix-inside-environment "$@"
    fi
    environments run -- "$BASH" "$here/launch.sh" --inside-environment "$@"
    ;;
--inside-environment)
    shift
    run_checks "$@"
    ;;
--matrix-inside-environment)
    shift
    cd -- "$here"
    export EAGLE3_MATRIX=1
    pytest tests/contract/releases tests/patches tests/server/test_{matrix,mla,patched_trees}.py \
        tests/server/test_{acceptance_recorded,acceptance_alarm,report,startup_watch,handover}.py "$@"
    python -m tests.patches.looked_at
    python -m tests.readme
    ;;
bench)
    shift
    (($#)) || fail "bench needs a name: startup, doctor, convert, acceptance"
    name=$1
    shift
    cd -- "$here"
    environments run -- python -m "bench.$name" "$@"
    ;;
run)
    shift
    environments run "$@"
    ;;
-h | --help)
    usage
    ;;
'')
    usage >&2
    exit 2
    ;;
*)
    exec "${PYTHON:-python3}" -m sglang_eagle3_patch.launch_server "$@"
    ;;
esac
