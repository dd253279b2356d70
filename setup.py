"""Adds the recipes of `configs/` to the package, so that `--config=tiny` finds them outside of a checkout."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable installation reads configs/ itself
            target = Path(self.build_lib, "bertjax", "recipes")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("configs", target, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithRecipes})
