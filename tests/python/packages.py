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


def pip_install(folder, packages, options=()):
    """Installs packages into folder, once; says whether they are there."""
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", *options, "--target", folder]
        if subprocess.run(pip + packages).returncode != 0:
            return False
        (folder / "complete").touch()
    return True


def files_of(folder, packages):
    """The folder that holds packages as they are unpacked, without what they would need to run: for the data in them.
    None where they cannot be had."""
    if pip_install(folder, packages, ["--no-deps"]):
        return folder
    print("Not compared: real files, as pip cannot install", *packages, "here")
    return None


def provide(folder, packages, modules=(), options=()):
    """Makes sure that packages can be imported, or ends with the status of a test that is skipped. They are installed
    into folder, unless all modules are here already."""
    if are_here(modules):
        return
    if not pip_install(folder, packages, options):
        print("Skipped: pip cannot install", *packages, "here")
        sys.exit(77)
    sys.path.insert(0, str(folder))
