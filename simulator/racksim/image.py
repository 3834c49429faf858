# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node image: Debian 12 by mmdebstrap and `docker import`, then one thin layer with the simulated hardware.

Both layers are tagged with a hash of what goes in, so a build without changes is one `docker image inspect`, and a
change of the simulated hardware rebuilds the thin layer only (seconds). The mirror is the one apt uses here.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

from racksim import engine
from racksim.errors import SimError
from racksim.rackfile import PROJECT_DIR, SIMULATOR_DIR

SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "kmod", "procps", "less", "tzdata"),
    *("python3", "python3-yaml", "python3-apt", "ca-certificates", "curl"),
    *("iproute2", "iptables", "iputils-ping", "numactl", "pciutils", "chrony"),
    *("rdma-core", "infiniband-diags", "perftest", "ibsim-utils", "opensm"),
)

CONSUL_SUITE = "bullseye"
CONSUL_VERSION = "1.8.7"

BASE_REPOSITORY = "gpurack-sim-base"
NODE_REPOSITORY = "gpurack-sim-node"

CACHE_DIR = PROJECT_DIR / ".cache" / "simulator"
FILES_DIR = Path(__file__).resolve().parent / "files"

MIRROR_VARIABLE = "GPU_RACK_DEBIAN_MIRROR"

_LABEL = "ai_infra.gpu_rack.image"

_SOURCES = (("simhw", SIMULATOR_DIR / "simhw"), ("engine", SIMULATOR_DIR / "engine"), ("files", FILES_DIR))
_SKIPPED = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def tag() -> str:
    """Reference of the node image for the checkout's present content."""
    digest = hashlib.sha256(_base_hash().encode())
    for name, path in _inputs():
        digest.update(f"{name}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(path.read_bytes())
    digest.update(CONSUL_VERSION.encode())
    return f"{NODE_REPOSITORY}:{digest.hexdigest()[:16]}"


def ensure(say: engine.Say) -> str:
    """Build the node image unless it is there. Its reference."""
    with engine.exclusive(CACHE_DIR / "build.lock", "the node image", say):
        wanted = tag()
        if engine.docker_try("image", "inspect", wanted).returncode != 0:
            _build(wanted, say)
            prune(say)
        return wanted


def _build(wanted: str, say: engine.Say) -> None:
    base = _ensure_base(say)
    consul = _ensure_consul(say)
    started = time.monotonic()
    container = engine.docker(
        *("create", "--network", "none", base, "/bin/sh", "-e", "/opt/simhw/setup.sh"), what="container for the image"
    )
    try:
        payload = _payload(consul)
        engine.docker("cp", "-", f"{container}:/", what="copying into the image", stdin=payload)
        engine.docker(
            *("start", "--attach", container),
            what="setting up the image (simulator/racksim/files/setup.sh)",
            remedy="Correct what it names; `simulator/rack build` tries again",
        )
        engine.docker(
            *("commit", "--change", 'CMD ["/usr/local/lib/simrack/init"]'),
            *("--change", "ENV container=docker", "--change", f"LABEL {_LABEL}=1"),
            *(container, wanted),
            what="storing the image",
        )
    finally:
        engine.docker_try("rm", "-f", container)
    say(f"node image {wanted} built in {time.monotonic() - started:.1f} s")


def prune(say: engine.Say) -> None:
    """Remove node images of former contents that no container uses. Young ones are left: a rack may be about to."""
    removed = engine.docker(
        *("image", "prune", "--all", "--force", "--filter", f"label={_LABEL}", "--filter", "until=1h"),
        what="removal of old images",
    )
    if "untagged" in removed:
        say(f"removed {removed.count('untagged')} old node images")


def _inputs() -> list[tuple[str, Path]]:
    """(name in the image's source tree, file) of everything in the thin layer, sorted. Missing trees are empty."""
    found = []
    for prefix, top in _SOURCES:
        for path in sorted(top.rglob("*")):
            relative = path.relative_to(top)
            if path.is_file() and not _SKIPPED & set(relative.parts) and path.suffix != ".pyc":
                found.append((f"{prefix}/{relative}", path))
    return found


def _payload(consul: Path) -> bytes:
    """A tar of /opt/simhw (simhw, engine, setup.sh), /usr/local/lib/simrack and Consul. Times fixed at 0."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, data: bytes, mode: int) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))

        for name, path in _inputs():
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            if name.startswith("files/"):
                name = name.removeprefix("files/")
                target = "opt/simhw/setup.sh" if name == "setup.sh" else f"usr/local/lib/simrack/{name}"
            else:
                target = f"opt/simhw/{name}"
            add(target, path.read_bytes(), mode)
        add("usr/local/bin/consul", consul.read_bytes(), 0o755)
    return buffer.getvalue()


def _base_hash() -> str:
    return hashlib.sha256(" ".join((SUITE, *sorted(PACKAGES))).encode()).hexdigest()[:16]


def _ensure_base(say: engine.Say) -> str:
    base = f"{BASE_REPOSITORY}:{_base_hash()}"
    if engine.docker_try("image", "inspect", base).returncode == 0:
        return base
    archive = CACHE_DIR / f"base-{_base_hash()}.tar"
    if not archive.exists():
        if shutil.which("mmdebstrap") is None:
            engine.install(["mmdebstrap"], say)
        CACHE_DIR.mkdir(parents=True, exist_ok=True)
        say(f"bootstrapping Debian {SUITE} with {len(PACKAGES)} packages (about half a minute)")
        temporary = archive.with_suffix(f".{os.getpid()}.tar")
        mirror = debian_mirror()
        # The keyring is named so that a machine of another Debian release can check bookworm's signatures.
        engine.run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
                *("--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"),
                *("--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright"),
                *(SUITE, str(temporary), f"deb {mirror} {SUITE} main"),
            ],
            what=f"bootstrapping Debian {SUITE} from {mirror}",
            remedy=f"Check that apt-get update works, or set {MIRROR_VARIABLE} to a Debian mirror",
            timeout=900,
        )
        temporary.replace(archive)
    say("importing the base image")
    engine.docker("import", str(archive), base, what="docker import")
    return base


def debian_mirror() -> str:
    """The Debian mirror of this machine's apt. GPU_RACK_DEBIAN_MIRROR overrides it (machines that are not Debian)."""
    given = os.environ.get(MIRROR_VARIABLE)
    if given:
        return given
    remedy = f"Set {MIRROR_VARIABLE} to a Debian mirror"
    row = "$(ORIGIN)|$(COMPONENT)|$(RELEASE)|$(REPO_URI)"
    listed = engine.run(
        ["apt-get", "indextargets", "--format", row, "Created-By: Packages"],
        what="reading apt's sources",
        remedy=remedy,
    )
    rows = [line.split("|", 3) for line in listed.stdout.decode().splitlines()]
    for origin, component, release, uri in rows:
        # Updates and security live elsewhere ("bookworm-updates"); the mirror with the release itself has all suites.
        # Before the first `apt-get update` the origin is not known and apt leaves the placeholder.
        if origin in ("Debian", "", "$(ORIGIN)") and component == "main" and release.isalpha() and "debian" in uri:
            return uri.rstrip("/")
    raise SimError("Debian mirror", "apt has no Debian release with component main among its sources", remedy)


def _ensure_consul(say: engine.Say) -> Path:
    """Consul from the archive of the last Debian release that had it, unpacked; the file of the binary."""
    binary = CACHE_DIR / f"consul-{CONSUL_VERSION}"
    if binary.exists():
        return binary
    say(f"fetching Consul {CONSUL_VERSION} from Debian {CONSUL_SUITE}")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    mirror = debian_mirror()
    remedy = f"Check that {mirror} has the suite {CONSUL_SUITE}, or set {MIRROR_VARIABLE}"
    with tempfile.TemporaryDirectory(dir=CACHE_DIR) as scratch_name:
        scratch = Path(scratch_name)
        for name in ("lists/partial", "cache/archives/partial", "unpacked"):
            (scratch / name).mkdir(parents=True)
        # The index of an old release is no longer refreshed and so expired by design; its signature is still good.
        (scratch / "sources.list").write_text(
            f"deb [check-valid-until=no] {mirror} {CONSUL_SUITE} main\n", encoding="utf-8"
        )
        (scratch / "status").touch()
        options = {
            "Dir::Etc::sourcelist": scratch / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": scratch / "lists",
            "Dir::State::status": scratch / "status",
            "Dir::Cache": scratch / "cache",
            "APT::Sandbox::User": "root",
        }
        apt = ["env", f"--chdir={scratch}", "apt-get", "-q"]
        apt += [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        engine.run([*apt, "update"], what=f"package list of Debian {CONSUL_SUITE}", remedy=remedy)
        engine.run([*apt, "download", "consul"], what="download of Consul", remedy=remedy)
        packages = list(scratch.glob("consul_*.deb"))
        if len(packages) != 1:
            raise SimError("download of Consul", f"{len(packages)} packages came", remedy)
        engine.run(
            ["dpkg-deb", "-x", str(packages[0]), str(scratch / "unpacked")], what="unpacking Consul", remedy=remedy
        )
        temporary = binary.with_suffix(f".{os.getpid()}")
        shutil.copy(scratch / "unpacked/usr/bin/consul", temporary)
        temporary.replace(binary)
    return binary
