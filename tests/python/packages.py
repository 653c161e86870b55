# SPDX-License-Identifier: MIT
"""What the scripts of this folder need of PyPI."""
import importlib
import subprocess
import sys


def are_here(modules):
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        return False
    return bool(modules)


def provide(folder, packages, modules=(), options=()):
    """Makes sure that packages can be imported, or ends with the status of a test that is skipped. They are installed
    into folder, unless all modules are here already."""
    if are_here(modules):
        return
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", *options, "--target", folder]
        if subprocess.run(pip + packages).returncode != 0:
            print("Skipped: pip cannot install", *packages, "here")
            sys.exit(77)
        (folder / "complete").touch()
    sys.path.insert(0, str(folder))
