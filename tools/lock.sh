#!/bin/sh
# Resolves requirements.lock for Python 3.10 to 3.13 with uv.
#
# Left out are jupyterlab, which HTA names as a dependency and its analyses never import, and the CUDA companions of
# torch, which pip takes itself where the wheel that it picks needs them.
#
# What is locked already stays as it is, unless UPGRADE is set.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v uv >/dev/null || { "${PYTHON:-python3}" -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv && PATH="$work/uv/bin:$PATH"; }
echo "jupyterlab ; sys_platform == 'never'" >"$work/overrides.txt"
[ -n "${UPGRADE:-}" ] || cp requirements.lock "$work/all.txt"
printf 'torch==2.13.0\ndeepspeed==0.19.8\n' >"$work/constraints.txt"
uv pip compile -q --universal --python-version 3.10 --all-extras --group test --group lint --no-header --no-annotate \
    --override "$work/overrides.txt" -c "$work/constraints.txt" pyproject.toml -o "$work/all.txt"
{
    head -n 2 requirements.lock
    sed -E "s/ or sys_platform == 'never'//; s/ (;|and) sys_platform != 'emscripten'//" "$work/all.txt" |
        grep -vE "'never'|sys_platform == '(win32|emscripten)'|^(nvidia-|cuda-|triton)"
} >"$work/lock.txt"
mv "$work/lock.txt" requirements.lock
