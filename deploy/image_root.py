"""Root file system of an image, put together from Debian packages: only named packages and the libraries that their programs load.

apt resolves and checks the packages of the arguments with all that they depend on, as for an empty system. Of these, this
program takes the named packages (NAME, or NAME=PATTERN,PATTERN for some of their files) and, from the others, every
package that has a shared library which a taken file needs (of a package with patterns, that library only). An argument
/DIRECTORY is no package: its programs need libraries, too. No package's scripts run, so the root needs no shell, Perl, dpkg
or apt. A library that no package has ends the build. Prints `NAME<tab>VERSION` of each package, for `sbom.py`.

    python3 image_root.py /root /opt/zonewise python3-minimal 'libpython3*' coreutils=bin/cat
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

ELF = b"\x7fELF"
MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""Directories that are links into /usr, while packages may still name them."""
NEVER = (
    *("usr/share/doc/*", "usr/share/doc-base/*", "usr/share/info/*", "usr/share/lintian/*", "usr/share/locale/*"),
    *("usr/share/bash-completion/*", "usr/share/bug/*", "usr/share/man/*", "usr/share/pixmaps/*", "usr/share/zsh/*"),
    *("etc/cron*", "etc/init.d/*", "etc/logrotate.d/*", "etc/systemd/*", "usr/lib/systemd/*", "usr/lib/tmpfiles.d/*"),
    # Of Python's standard library what no program of ours imports, and what needs libraries of its own.
    *("usr/lib/python3*/idlelib/*", "usr/lib/python3*/pydoc_data/*", "usr/lib/python3*/test/*"),
    *("usr/lib/python3*/lib-dynload/_dbm.*", "usr/lib/python3*/lib-dynload/nis.*", "usr/lib/*/gconv/*"),
)
"""Not in an image. Copyright files are added apart."""
DOCUMENTATION = "usr/share/doc"
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"
    "zonewise:x:65532:65532:zonewise:/nonexistent:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\nzonewise:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DIRECTORIES = {"dev": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755, "sys": 0o755, "tmp": 0o1777, "var/tmp": 0o1777}
CERTIFICATES = "usr/share/ca-certificates/mozilla"
_WHOLE = ("*",)


class RootError(Exception):
    pass


@dataclass(frozen=True)
class Package:
    """An unpacked package."""

    name: str
    version: str
    files: Mapping[str, Path]
    """By path in the image, without the leading slash; with empty directories."""

    @property
    def sonames(self) -> set[str]:
        return {Path(path).name for path in self.files if ".so" in path}


def merged(path: str) -> str:
    """With /bin, /lib and their like as the links into /usr that they are."""
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path


def wanted(path: str, patterns: Iterable[str] = _WHOLE) -> bool:
    if any(fnmatchcase(path, pattern) for pattern in NEVER):
        return False
    return any(fnmatchcase(path, merged(pattern)) for pattern in patterns)


def selection(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Patterns of files by pattern of packages."""
    parts = (argument.partition("=") for argument in arguments)
    return {name: tuple(files.split(",")) if files else _WHOLE for name, _, files in parts}


def needed(listing: str) -> set[str]:
    """Names of libraries in the output of `readelf --dynamic`."""
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", listing))


def add_libraries(
    taken: dict[str, Package], others: dict[str, Package], loads: Callable[[Package], set[str]]
) -> set[str]:
    """Adds to `taken` what its files load, and returns the libraries that nobody has."""
    present: set[str] = set()
    pending = list(taken.values())
    missing: set[str] = set()
    for package in taken.values():
        present |= package.sonames
    while pending:
        for library in sorted(loads(pending.pop()) - present):
            owner = next((other for other in others.values() if library in other.sonames), None)
            if owner is None:
                missing.add(library)
            elif library not in present:
                before = taken.get(owner.name)
                added = library_files(owner, library) if before else owner  # a package taken in part stays a part
                taken[owner.name] = replace(added, files={**before.files, **added.files}) if before else owner
                present |= added.sonames
                pending.append(added)
    return missing


def library_files(package: Package, library: str) -> Package:
    """Of the package only this library, which may be a link to a file beside it."""
    links = [at for path, at in package.files.items() if Path(path).name == library and at.is_symlink()]
    return part(package, [f"*/{name}" for name in (library, *(link.readlink().name for link in links))])


def fetch(names: Iterable[str], directory: Path) -> list[Path]:
    """Archives of the packages and of all that they depend on."""
    directory.joinpath("partial").mkdir(parents=True)
    nothing = directory / "status"
    nothing.touch()
    options = {
        "Dir::State::status": nothing,
        "Dir::Cache::archives": directory,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    flags = [f"--option={key}={value}" for key, value in options.items()]
    # Packages that are essential on a system need no dependency, so apt does not add what is not asked for.
    run("apt-get", "install", "--quiet=2", "--yes", "--download-only", *flags, *names)
    return sorted(directory.glob("*.deb"))


def unpack(archive: Path, directory: Path) -> Package:
    name, version = run("dpkg-deb", "--show", "--showformat=${Package}\t${Version}", str(archive)).split("\t")
    place = directory / name
    place.mkdir(parents=True)
    run("dpkg-deb", "--extract", str(archive), str(place))
    paths = (
        path for path in sorted(place.rglob("*")) if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    )
    return Package(name, version, {merged(str(path.relative_to(place))): path for path in paths})


def copyright_of(name: str, unpacked: Path) -> Path:
    """The documentation of some packages is a link to another package's."""
    place = unpacked / name / DOCUMENTATION / name
    owner = place.readlink().name if place.is_symlink() else name
    return unpacked / owner / DOCUMENTATION / owner / "copyright"


def part(package: Package, patterns: Iterable[str]) -> Package:
    return Package(
        package.name, package.version, {path: at for path, at in package.files.items() if wanted(path, patterns)}
    )


def libraries_of(package: Package) -> set[str]:
    elves = [str(at) for at in package.files.values() if not at.is_symlink() and at.is_file() and _is_elf(at)]
    return needed(run("readelf", "--dynamic", "--wide", *elves)) if elves else set()


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ELF)) == ELF


def directory(path: Path) -> Package:
    """Files that are no package, as one."""
    return Package(str(path), "", {str(at.relative_to("/")): at for at in sorted(path.rglob("*")) if at.is_file()})


def choose(
    packages: Iterable[Package], selected: Mapping[str, tuple[str, ...]], programs: Iterable[Package]
) -> list[Package]:
    """`programs` are no part of the result, which has the libraries that they load."""
    taken = {one.name: one for one in programs}
    beside = set(taken)
    others: dict[str, Package] = {}
    for package in packages:
        patterns = next((files for name, files in selected.items() if fnmatchcase(package.name, name)), None)
        others[package.name] = part(package, _WHOLE)
        if patterns is not None:
            taken[package.name] = part(package, patterns)
    missing = add_libraries(taken, others, libraries_of)
    if missing:
        raise RootError(f"no package has {', '.join(sorted(missing))}")
    return [taken[name] for name in sorted(taken.keys() - beside)]


def write(root: Path, packages: Iterable[Package], archives: Mapping[str, Path], unpacked: Path) -> None:
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / link).mkdir(parents=True)
        (root / link).symlink_to(Path("usr", link))
    for directory, mode in DIRECTORIES.items():
        (root / directory).mkdir(parents=True)
        (root / directory).chmod(mode)
    (root / "var/run").symlink_to("/run")
    records = root / "var/lib/dpkg/status.d"  # where scanners look for the packages of an image without dpkg
    records.mkdir(parents=True)
    for package in packages:
        documentation = root / DOCUMENTATION / package.name
        documentation.mkdir(parents=True)
        shutil.copyfile(copyright_of(package.name, unpacked), documentation / "copyright")
        (records / package.name).write_text(run("dpkg-deb", "--field", str(archives[package.name])))
        for path, at in package.files.items():
            _move(at, root / path)
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    _finish(root)


def _move(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def _finish(root: Path) -> None:
    """What scripts of packages would do: the bundle of certificates, and bytecode of the standard library."""
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in sorted((root / CERTIFICATES).glob("*.crt"))))
    shutil.rmtree(root / CERTIFICATES, ignore_errors=True)
    for library in sorted((root / "usr/lib").glob("python3*")):
        quietly = ("-q", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
        run(sys.executable, "-m", "compileall", *quietly, str(library))
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if not path.is_symlink() and not path.is_dir() and mode & 0o6000:
            path.chmod(mode & 0o777)  # pods gain no rights by programs


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RootError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def main(root: Path, arguments: list[str]) -> None:
    programs = [directory(Path(argument)) for argument in arguments if argument.startswith("/")]
    selected = selection(argument for argument in arguments if not argument.startswith("/"))
    scratch = root.with_name(f"{root.name}.packages")
    files = scratch / "files"
    archives = fetch([name for name in selected if "*" not in name], scratch / "archives")
    unpacked = [(unpack(archive, files), archive) for archive in archives]
    packages = choose((package for package, _ in unpacked), selected, programs)
    by_name = {package.name: archive for package, archive in unpacked}
    write(root, packages, by_name, files)
    shutil.rmtree(scratch)
    sys.stdout.writelines(f"{package.name}\t{package.version}\n" for package in packages)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except RootError as error:
        sys.exit(f"image_root: {error}")
