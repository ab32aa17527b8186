"""What is given to people: completions that shells read, manual pages that render, a package, a tarball, an image."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from conftest import ROOT
from server import Server


def verbs(quern):
    return [line.split()[0] for line in quern().out.splitlines() if line.startswith("  ")]


def options(quern, verb):
    return re.findall(r"^  .*?--([a-z0-9-]+)", quern(verb, "--help").out.split("\n\n", 2)[2].split("\n\n")[0], re.M)


def need(tool):
    return shutil.which(tool) or pytest.skip(f"{tool} is not installed")


# ---- completion ----

def test_completion_has_every_verb_and_option(quern):
    for shell in ("bash", "zsh", "fish"):
        text = quern("completion", shell).out
        for verb in verbs(quern):
            assert verb in text
            for option in options(quern, verb):
                assert f"--{option}" in text or f"-l {option}" in text
    done = quern("completion", "tcsh")
    assert done.code == 64 and "bash, zsh and fish" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_read_by_its_shell(quern, shell, tmp_path):
    script = tmp_path / "quern"
    script.write_text(quern("completion", shell).out)
    done = subprocess.run([need(shell), "-n", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def bash_complete(binary, quern, tmp_path, *words):
    script = tmp_path / "completion"
    script.write_text(quern("completion", "bash").out)
    line = f"""source {script}; PATH={binary.parent}:$PATH; compopt() {{ :; }}
COMP_WORDS=({" ".join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _quern; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == "", done.stderr
    return done.stdout.split()


def test_bash_completes(binary, quern, tmp_path):
    def complete(*words):
        return bash_complete(binary, quern, tmp_path, *words)
    assert complete("quern", "to") == ["tokenize"] and "run" in complete("quern", "")
    assert sorted(complete("quern", "run", "--temp")) == ["--temp", "--template"]
    assert "--json" in complete("quern", "info", "--") and "--temp" not in complete("quern", "info", "--")
    assert complete("quern", "completion", "") == ["bash", "zsh", "fish"]
    assert complete("quern", "help", "pu") == ["pull"]
    (tmp_path / "my.gguf").touch()
    assert "my.gguf" in complete("quern", "run", "my")
    assert complete("quern", "run", "--seed", "") == []


def test_fish_completes(binary, quern, tmp_path):
    fish = need("fish")
    script = tmp_path / "quern.fish"
    script.write_text(quern("completion", "fish").out)
    done = subprocess.run([fish, "--no-config", "-c", f"source {script}; complete -C 'quern tok'; complete -C 'quern run --tem'"],
                          capture_output=True, text=True)
    words = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert "tokenize" in words and "--temp" in words and "--template" in words


# ---- manual pages ----

def test_manual_pages_render(quern, tmp_path):
    for verb in [None, *verbs(quern)]:
        page = tmp_path / (f"quern-{verb}.1" if verb else "quern.1")
        page.write_text(quern("help", *([verb] if verb else []), "--man").out)
        done = subprocess.run([need("man"), "-l", "--warnings", "-Tutf8", page], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", (verb, done.stderr)
        plain = re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)
        for option in options(quern, verb) if verb else []:
            assert f"--{option}" in plain, (verb, option)
        if shutil.which("mandoc"):
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "error", page], capture_output=True, text=True)
            assert lint.returncode == 0, lint.stdout
    assert "EXIT STATUS" in re.sub(r".\x08", "", (tmp_path / "quern.1").read_text())


# ---- doctor ----

def test_doctor(quern, tmp_path):
    found = quern("doctor", "--json", env={"HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_secret"})
    report = found.json()
    assert report["cpu"]["cores"] >= 1 and report["tiers"]["scalar"] and report["memory"]["total"] > 0
    assert report["folders"]["hub"] == {"path": f"{tmp_path}/hf/hub", "there": False, "writable": True,
                                        "free": report["folders"]["hub"]["free"]}
    assert report["hub"]["token"] is True and "hf_secret" not in found.out
    text = quern("doctor", env={"HF_HOME": str(tmp_path / "hf")})
    assert text.code == 0 and "memory" in text.out and f"{tmp_path}/hf/hub" in text.out


# ---- packages ----

@pytest.fixture(scope="module")
def packages(binary, tmp_path_factory):
    need("dpkg-deb") and need("dpkg-shlibdeps") and need("readelf")
    out = tmp_path_factory.mktemp("package")
    subprocess.run(["cmake", "--build", binary.parent, "--target", "quern_pages"], check=True, capture_output=True)
    subprocess.run([sys.executable, ROOT / "scripts" / "package", binary.parent, "--out", out], check=True, capture_output=True)
    return out


def test_tarball(packages, tmp_path):
    (path,) = packages.glob("*.tar.gz")
    with tarfile.open(path) as tar:
        assert all(m.uid == 0 and not m.name.startswith(("/", "..")) for m in tar.getmembers())
        tar.extractall(tmp_path, filter="tar")
    (top,) = tmp_path.iterdir()
    out = subprocess.run([top / "bin" / "quern", "--version"], capture_output=True, text=True, check=True).stdout
    assert out.startswith("quern ") and (top / "share/man/man1/quern-run.1").is_file() and (top / "LICENSE").is_file()


def test_list_of_components(packages):
    (path,) = packages.glob("*.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "quern"
    assert bill["dependencies"][0]["dependsOn"] == [c["bom-ref"] for c in bill["components"]]


def test_installer_takes_what_has_the_checksum(packages, tmp_path):
    (path,) = packages.glob("*.tar.gz")
    version, machine = re.fullmatch(r"quern-(.*)-linux-(.*)\.tar\.gz", path.name).groups()
    text = (ROOT / "package/install.in").read_text().replace("@VERSION@", version).replace("@URL@", str(packages))
    text = text.replace(f"@SUM_{machine}@", hashlib.sha256(path.read_bytes()).hexdigest())
    script = tmp_path / "install"
    script.write_text(text)

    def install(*args):
        return subprocess.run(["sh", script, "--prefix", tmp_path / "to", *args], capture_output=True, text=True)
    done = install()
    assert done.returncode == 0 and "is installed" in done.stdout, done.stderr
    assert (tmp_path / "to/share/man/man1/quern-run.1").is_file()
    assert subprocess.run([tmp_path / "to/bin/quern", "--version"], capture_output=True, text=True).stdout == f"quern {version}\n"
    shutil.rmtree(tmp_path / "to")
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes() + b"x")
    refused = install("--from", other)
    assert refused.returncode == 1 and "wrong checksum" in refused.stderr and not (tmp_path / "to").exists()
    assert install("--from", tmp_path / "nowhere").returncode == 1 and install("--preffix", "x").returncode == 64


def test_debian_package(packages, tmp_path):
    (path,) = packages.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", path, tmp_path], check=True)
    fields = subprocess.run(["dpkg-deb", "-f", path], capture_output=True, text=True, check=True).stdout
    assert "Package: quern\n" in fields and "libc6 (>=" in fields and "Recommends: libcurl4, ca-certificates" in fields
    assert subprocess.run([tmp_path / "usr/bin/quern", "--version"], capture_output=True).returncode == 0
    for file in ("usr/share/man/man1/quern-pull.1.gz", "usr/share/bash-completion/completions/quern", "etc/default/quern",
                 "usr/share/zsh/vendor-completions/_quern", "usr/share/fish/vendor_completions.d/quern.fish",
                 "lib/systemd/system/quern.service", "usr/share/doc/quern/copyright"):
        assert (tmp_path / file).is_file(), file
    if shutil.which("lintian"):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_service_is_understood_by_systemd(packages, tmp_path):
    tool = need("systemd-analyze")
    unit = tmp_path / "quern.service"
    unit.write_text((ROOT / "package/quern.service").read_text().replace("/usr/bin/quern", "/bin/true"))
    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True)
    assert "quern.service" not in done.stderr, done.stderr


def test_image(packages, tmp_path):
    (path,) = packages.glob("*-oci.tar")
    layout, bundle = tmp_path / "layout", tmp_path / "bundle"
    with tarfile.open(path) as tar:
        tar.extractall(layout, filter="tar")
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((layout / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_text())
    config = json.loads((layout / "blobs/sha256" / manifest["config"]["digest"][7:]).read_text())
    assert config["config"]["User"] == "65532:65532" and config["config"]["Entrypoint"] == ["/usr/bin/quern"]
    with tarfile.open(layout / "blobs/sha256" / manifest["layers"][0]["digest"][7:]) as layer:
        owners = {m.name: m.uid for m in layer.getmembers()}
        assert owners["models"] == 65532 and owners["usr/bin/quern"] == 0
    subprocess.run([need("skopeo"), "inspect", f"oci-archive:{path}"], check=True, capture_output=True)
    subprocess.run([need("umoci"), "unpack", "--rootless", "--image", f"{layout}:{index['manifests'][0]['annotations']['org.opencontainers.image.ref.name']}",
                    bundle], check=True, capture_output=True)
    inside = ["unshare", "--map-root-user", "chroot", bundle / "rootfs"]
    if subprocess.run(["unshare", "--map-root-user", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run([*inside, "/usr/bin/quern", "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hub"]["libcurl"]  # it can fetch there, too
    refused = subprocess.run([*inside, "/usr/bin/quern", "serve", "--host", "0.0.0.0", "--offline"], capture_output=True, text=True)
    assert refused.returncode == 64 and "key" in refused.stderr


@pytest.mark.slow
def test_packages_are_the_same_every_time(packages, binary, tmp_path):
    def package(out, env, umask):
        subprocess.run([sys.executable, ROOT / "scripts" / "package", binary.parent, "--out", tmp_path / out], check=True, capture_output=True,
                       env={**os.environ, **env}, umask=umask)
    package("again", {"TZ": "Asia/Kolkata", "LC_ALL": "C"}, 0o027)
    for path in packages.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    # one date for all, also for what was built before it
    package("later", {"SOURCE_DATE_EPOCH": "2000000000"}, 0o022)
    (deb,) = (tmp_path / "later").glob("*.deb")
    lines = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout.splitlines()
    assert lines and all("2033-05-18 03:33" in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_debian_package_in_a_clean_root(arch, smollm2, tmp_path):
    """The package of a release in a root of Debian's essential packages alone; that of another architecture runs under qemu. It
    installs, and the unit's command line starts a server that answers. QUERN_ROOTS: a folder for such roots."""
    path = next((ROOT / "dist").glob(f"quern_*_{arch}.deb"), None) or pytest.skip("no package in dist/ (make release)")
    if os.getuid() or subprocess.run([need("arch-test"), arch], capture_output=True).returncode:
        pytest.skip(f"needs root, and binfmt_misc for {arch}")
    root = Path(os.environ.get("QUERN_ROOTS", tmp_path)) / arch
    if not root.exists():
        subprocess.run([need("mmdebstrap"), "--quiet", f"--arch={arch}", "--variant=apt", "bookworm", root], check=True)
    shutil.copy(path, root / "quern.deb")
    done = subprocess.run(["chroot", root, "dpkg", "-i", "/quern.deb"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.copy(smollm2, root / "model.gguf")
    (root / "etc/default/quern").write_text("QUERN_MODEL=/model.gguf\nQUERN_OPTIONS='--port 0 --ctx 256'\n")
    unit = (root / "lib/systemd/system/quern.service").read_text()
    command, variables, file = (re.search(rf"^{key}=-?(.*)$", unit, re.M)[1] for key in ("ExecStart", "Environment", "EnvironmentFile"))
    start = tmp_path / "start"  # as systemd does it, whatever its arguments are
    start.write_text(f"#!/bin/sh\nmount -t proc proc {root}/proc\nmount --rbind /dev {root}/dev\n"
                     f"exec chroot {root} env -i {variables} sh -c '. {file}; mkdir -p $HOME; exec {command}'\n")
    start.chmod(0o755)
    launch = tmp_path / "launch"
    launch.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private {start}\n")
    launch.chmod(0o755)
    server = Server(launch)
    assert server.request("GET", "/health")[0] == 200
    reply = server.ask("/v1/completions", {"prompt": "One, two,", "max_tokens": 4, "temperature": 0})
    assert reply["choices"][0]["text"].strip()
    assert server.stop() == 0
    assert subprocess.run(["chroot", root, "dpkg", "--purge", "quern"], capture_output=True).returncode == 0
    assert not (root / "usr/bin/quern").exists()
