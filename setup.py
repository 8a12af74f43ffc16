"""Where the wheel `tidewheel` holds what: the packages of the broker, in the folder `tidewheel/broker`.

In the sources every package is a folder of the top. Installed like that, names such as `services` would
shadow users' own, or be overwritten by them; so an installation has one name. The package of that name is
the wheel `tidewheel-client` (distributions/client), which this one requires in the same version; its
`tidewheel/command.py` finds the folder. No file is in both. All else about the distributions is in their
pyproject.toml.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ONE_NAME = "tidewheel"


class BuildPackages(build_py):
    """Build the packages, those of the broker inside `tidewheel/broker`; an editable installation stays."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            built = Path(self.build_lib)
            inside = built / ONE_NAME / "broker"
            shutil.rmtree(inside, ignore_errors=True)
            inside.mkdir(parents=True)
            for package in sorted(path for path in built.iterdir() if path.name != ONE_NAME):
                package.rename(inside / package.name)


class EggInfo(egg_info):
    """Say that there is one name to import."""

    def run(self) -> None:
        super().run()
        Path(self.egg_info, "top_level.txt").write_text(f"{ONE_NAME}\n")


setup(cmdclass={"build_py": BuildPackages, "egg_info": EggInfo})
