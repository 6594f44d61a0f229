#!/bin/sh
# `kubectl capcard`: runs the wheels beside this file in an environment of its own, which the first call makes.
set -eu
here=$(dirname "$(readlink -f "$0")")
wheel=$(ls "$here"/capcard_sched-*.whl)
home=${XDG_DATA_HOME:-$HOME/.local/share}/capcard-sched/$(basename "$wheel" .whl)
if [ ! -e "$home/ready" ]; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: kubectl capcard needs Python 3.11 or newer; PYTHON=/path/to/python3 selects one" >&2
    exit 2
  }
  echo "installing $(basename "$wheel") into $home" >&2
  {
    "$python" -m venv --clear "$home" &&
    "$home/bin/python" -m pip --quiet --disable-pip-version-check install --require-hashes -r "$here/run.lock" &&
    "$home/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-index "$here"/*.whl &&
    : > "$home/ready"
  } >&2 || {
    echo "error: kubectl capcard is not installed; the next call tries again" >&2
    exit 1
  }
fi
exec "$home/bin/kubectl-capcard" "$@"
