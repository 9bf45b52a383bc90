"""`python -m specview`."""

# -m puts the current folder first on the path, and a folder of downloaded models may hold a json.py. Until it is taken
# out, only what is built into Python or loaded already may be imported; `from __future__` is neither.
import os
import sys

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()) and os.path.realpath(sys.path[0]) != os.path.realpath(_HOME):
    del sys.path[0]



def main() -> int:
    """Run the command line; a Ctrl-C while its modules are read is no traceback either."""
    try:
        from specview.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("specview: stopped.\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
