#!/usr/bin/env python3
"""Packs a wheel of a folder with the package mlpool, and licenses of all that is in it.

    tools/release/pack.py DIR VERSION TAG EPOCH
"""

import ast
import base64
import hashlib
import sys
import time
import zipfile
from pathlib import Path

METADATA = """\
Metadata-Version: 2.4
Name: mlpool
Version: {version}
Summary: A pool of GPU memory for PyTorch, CuPy, RMM, C and C++
License-Expression: MIT AND BSD-3-Clause
{licenses}
Keywords: CUDA,GPU,memory,allocator,PyTorch
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/plain

{description}
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: mlpool\nRoot-Is-Purelib: false\nTag: {tag}\n"


def files_of(folder: Path, version: str, tag: str) -> dict[str, bytes]:
    """Return the contents of the wheel by name, without RECORD."""
    def read(part: str, to: str) -> dict[str, bytes]:
        return {to + str(f.relative_to(folder)): f.read_bytes() for f in sorted((folder / part).rglob("*")) if f.is_file()}

    info = f"mlpool-{version}.dist-info/"
    package, licenses = read("mlpool", ""), read("licenses", info)
    names = "\n".join(f"License-File: {name.split('/', 2)[2]}" for name in licenses)
    description = ast.get_docstring(ast.parse(package["mlpool/__init__.py"]))
    metadata = METADATA.format(version=version, licenses=names, description=description)
    return {**package, info + "METADATA": metadata.encode(), info + "WHEEL": WHEEL.format(tag=tag).encode(), **licenses}


def record_of(files: dict[str, bytes], name: str) -> bytes:
    """Return RECORD, which has the sums of all other files."""
    def sum_of(data: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    return "".join([f"{file},sha256={sum_of(data)},{len(data)}\n" for file, data in files.items()] + [f"{name},,\n"]).encode()


def main(folder: str, version: str, tag: str, epoch: str) -> None:
    files = files_of(Path(folder), version, tag)
    record = f"mlpool-{version}.dist-info/RECORD"
    files[record] = record_of(files, record)
    wheel = Path(folder).parent / f"mlpool-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, time.gmtime(int(epoch))[:6])
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            z.writestr(info, data)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
