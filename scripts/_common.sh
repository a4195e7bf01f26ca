# Shared by the scripts of this folder: where the repository is, and a virtual environment in it.
# Sourced, not run.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${BURNT_VENV:-$ROOT/.venv}"
BURNT_VERSIONS="${BURNT_VERSIONS:-tested}"  # of torch and Triton: tested, oldest or newest

say() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
        printf '\033[1m==>\033[0m %s\n' "$*"
    else
        printf '==> %s\n' "$*"
    fi
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# make_venv: the environment in .venv, made with $PYTHON (python3 by default) unless it is there and works.
make_venv() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || die "PYTHON=$PYTHON is not a program. Name a Python 3.11 or newer."
        local wanted found
        wanted="$("$PYTHON" -c 'import sys; print(*sys.version_info[:3], sep=".")' 2>/dev/null)" \
            || die "PYTHON=$PYTHON is not Python. Name a Python 3.11 or newer."
        found="$("$VENV/bin/python" -c 'import sys; print(*sys.version_info[:3], sep=".")' 2>/dev/null || true)"
        if [ -n "$found" ] && [ "$found" != "$wanted" ]; then
            say "replacing $VENV, which has Python $found, by one with $wanted"
            rm -rf "$VENV"
        fi
    fi
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        return
    fi
    local python="${PYTHON:-}"
    if [ -z "$python" ]; then
        local candidate
        for candidate in python3.11 python3.12 python3.13 python3 python; do
            if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
                python="$candidate"
                break
            fi
        done
    fi
    [ -n "$python" ] || die "no Python 3.11 or newer found. Install one, or name it: PYTHON=/path/to/python $0"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$("$python" --version 2>&1) is too old: burnt needs 3.11 or newer. Name another: PYTHON=/path/to/python $0"
    say "making $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || die "$python cannot make virtual environments. On Debian: apt install python3-venv"
}

# constraints: the versions to install. Of the oldest torch and Triton that burnt supports, numpy is the last whose
# deprecations Triton's interpreter does not trip over; of the newest, nothing is said.
constraints() {
    local others='^(torch|torchvision|triton|numpy)=='
    case "$BURNT_VERSIONS" in
        tested) cat "$ROOT/constraints.txt" ;;
        oldest) grep -vE "$others" "$ROOT/constraints.txt"; printf '%s\n' 'torch==2.11.0' 'triton==3.6.0' 'numpy<2.4' ;;
        newest) grep -vE "$others" "$ROOT/constraints.txt" ;;
        *) die "BURNT_VERSIONS=$BURNT_VERSIONS: expected tested, oldest or newest" ;;
    esac
}

# install EXTRAS: burnt and the extras into the venv, at the versions of `constraints`; nothing if that was done.
install() {
    local extras="$1" stamp="$VENV/.installed-$1" wanted torch
    wanted="$(constraints | cat "$ROOT/pyproject.toml" - | cksum) $ROOT"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    say "installing burnt[$extras] (the first time takes a few minutes)"
    # torch first and by its exact version: an open range would take the newest build and its CUDA libraries.
    constraints >"$VENV/constraints.txt"
    torch="$(grep '^torch==' "$VENV/constraints.txt" || echo torch)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c "$VENV/constraints.txt" "$torch" \
        || die "torch could not be installed (see above)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c "$VENV/constraints.txt" \
        --editable "$ROOT[$extras]" || die "burnt could not be installed (see above)"
    printf '%s' "$wanted" >"$stamp"
}

# install_torchvision: the one whose transforms those of burnt are compared with, into a folder that the tests which
# want it put on the path. In the venv itself, transformers would import it, and fail: beside a torch for CPUs, PyPI's
# wheels lack the CUDA libraries of their operators, which the transforms do without. Of other torches, none is named.
install_torchvision() {
    local wanted folder="$VENV/torchvision"
    wanted="$(constraints | grep '^torchvision==')" || return 0
    if [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$wanted" ]; then
        return
    fi
    say "installing $wanted for the tests of transforms"
    rm -rf "$folder"
    if "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$wanted"; then
        printf '%s' "$wanted" >"$folder/.installed"
    else
        printf 'warning: the tests that compare with it are skipped\n' >&2
    fi
}
