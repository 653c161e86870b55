#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Python reads what we write, and we read what Python writes: exchange.py PROGRAM FOLDER

PROGRAM is what tests/python/exchange.cpp becomes, FOLDER a place for packages and files: safetensors and numpy are
installed into it."""
import shutil
import subprocess
import sys
from pathlib import Path

from packages import provide


def python_reads_ours(program, folder):
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import load_file
    subprocess.run([program, "write", folder], check=True)
    checkpoint = folder / "checkpoint-000001"
    net = load_file(checkpoint / "net.safetensors")
    expected = {
        "layer.0.weight": ("<f4", (2, 3), [1.5, -0.0, 3, 4, 5, 3e-45]),
        "layer.0.bias": ("<f8", (2,), [0.1, -7]),
        "f16": ("<f2", (2,), [1.5, -2]),
        "i8": ("|i1", (2,), [-128, 127]),
        "u8": ("|u1", (1,), [255]),
        "i32": ("<i4", (1, 1, 1), [-2_000_000_000]),
        "number of batches €": ("<i8", (), [1 << 40]),
        "flags": ("|b1", (2,), [False, True]),
        "nothing": ("<f4", (0, 3), []),
    }
    assert net.keys() == expected.keys(), net.keys()
    for name, (dtype, shape, elements) in expected.items():
        array = net[name]
        assert (array.dtype.str, array.shape) == (dtype, shape), (name, array)
        assert array.tobytes() == numpy.array(elements, dtype).tobytes(), (name, array)
    pieces = [load_file(checkpoint / f"optimizer.rank-{rank}.safetensors")["momentum"] for rank in (0, 1)]
    assert [piece.tolist() for piece in pieces] == [[1, 2, 3], [4]]
    with safe_open(checkpoint / "half.safetensors", framework="numpy") as half:
        assert half.get_slice("bf16").get_dtype() == "BF16" and half.get_slice("bf16").get_shape() == [2]


def we_read_pythons(program, folder):
    import numpy
    from safetensors.numpy import save_file
    dtypes = {"float16": "f16", "float32": "f32", "float64": "f64", "int8": "i8", "uint8": "u8", "int32": "i32",
              "int64": "i64", "bool": "bool"}
    arrays = {f"of {dtype} \"€\"": (numpy.arange(6) % 5).astype(dtype).reshape(2, 3) for dtype in dtypes}
    arrays["one"] = numpy.array(2.5, "float32")
    arrays["none"] = numpy.zeros((3, 0), "int32")
    file = folder / "theirs.safetensors"
    save_file(arrays, file, metadata={"format": "pt", "note": "a \"quoted\" one"})
    lines = subprocess.run([program, "read", file], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = {name: rest for name, *rest in (line.split("\t") for line in lines)}
    assert ours == {
        name: [dtypes[array.dtype.name], ",".join(map(str, array.shape)), array.tobytes().hex()]
        for name, array in arrays.items()
    }, ours


def main():
    program, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    provide(folder / "packages", ["safetensors", "numpy"])
    shutil.rmtree(folder / "files", ignore_errors=True)
    (folder / "files").mkdir()
    python_reads_ours(program, folder / "files")
    we_read_pythons(program, folder / "files")
    print("Python reads our files, and we read Python's")


main()
