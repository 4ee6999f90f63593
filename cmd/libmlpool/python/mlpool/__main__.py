# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""Runs a program of PyTorch, unchanged, on the pool:

    python -m mlpool SCRIPT [ARGUMENT...]
    python -m mlpool -m MODULE [ARGUMENT...]

Options of the pool are taken from the environment: MLPOOL_SLACK=0.1 is install(slack=0.1). Processes that the
program spawns itself have PyTorch's own allocator, unless they call mlpool.install().
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import types

import mlpool


def run_script(path: str) -> None:
    """Run a file as python does: as __main__, with the file's folder first in sys.path."""
    with io.open_code(os.path.abspath(path)) as f:
        code = compile(f.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(path)
    sys.modules["__main__"] = main
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    exec(code, main.__dict__)


def main() -> None:
    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    words = arguments[1:] if module else arguments
    if not words or words[0].startswith("-"):
        print(__doc__.split("\n\n")[1], file=sys.stdout if words in (["-h"], ["--help"]) else sys.stderr)
        sys.exit(0 if words in (["-h"], ["--help"]) else 2)
    if not module and not os.path.isfile(words[0]):
        sys.exit(f"mlpool: there is no file {words[0]}")
    try:
        mlpool.install()
    except (ImportError, OSError, RuntimeError) as e:
        sys.exit(f"mlpool: {str(e).removeprefix('mlpool: ')}")
    sys.argv = words
    if module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        run_script(words[0])


if __name__ == "__main__":
    main()
