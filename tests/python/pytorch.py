#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch loads a module's weights from a checkpoint: pytorch.py PROGRAM FOLDER

PROGRAM is what tests/python/exchange.cpp becomes, FOLDER a place for packages and files: safetensors is installed into
it. PyTorch must be there already, for this Python or for the system's."""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packages import provide

SYSTEM_PYTHON = "/usr/bin/python3"  # which Debian's package python3-torch is for


def find_torch():
    """Goes on in a Python that has PyTorch, or ends with the status of a test that is skipped."""
    if importlib.util.find_spec("torch") is not None:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(SYSTEM_PYTHON) and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("Skipped: there is no PyTorch; the package python3-torch has one")
    sys.exit(77)


def main():
    program, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    provide(folder / "packages", ["safetensors"], options=["--no-deps"])
    find_torch()
    import torch
    from safetensors.torch import load_file
    files = folder / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    subprocess.run([program, "write", files], check=True)
    checkpoint = files / "checkpoint-000001"
    half = load_file(checkpoint / "half.safetensors")["bf16"]
    assert half.dtype == torch.bfloat16 and half.tolist() == [1.5, -2], half
    weights = load_file(checkpoint / "net.safetensors")
    module = torch.nn.Linear(3, 2)
    module.load_state_dict({"weight": weights["layer.0.weight"], "bias": weights["layer.0.bias"].float()})
    expected = torch.tensor([[1.5, 0, 3], [4, 5, 0]]) @ torch.ones(3) + torch.tensor([0.1, -7])
    assert torch.allclose(module(torch.ones(3)), expected), module(torch.ones(3))
    print("PyTorch", torch.__version__, "loads what we have written")


main()
