"""Shared by the tests of the scripts of this folder."""

import contextlib
import csv
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path


class InFolder(unittest.TestCase):
    """Runs each test in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(folder.name)
        self.folder = Path(folder.name)


def run(main, *argv):
    """The status of a script's main, its standard output, and the lines of its standard error."""
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            status = main(list(argv))
        except SystemExit as err:
            status, _ = 1, print(err.code, file=sys.stderr)
    return status, stdout.getvalue(), stderr.getvalue().splitlines()


def read_csv(path):
    """The lines of notes of a CSV, and its rows."""
    lines = Path(path).read_text().splitlines()
    return [line for line in lines if line.startswith("#")], list(csv.DictReader(line for line in lines if not line.startswith("#")))
