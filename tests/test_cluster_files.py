"""The files in cluster/ for Kubernetes and SkyPilot: what their readers say of them, and the commands in them."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command_server import PROJECT_ON_PATH
from tests.conftest import ROOT
from tests.processes import finish, free_port, metrics, read_lines, simulated_devices, start_command, wait_for

CLUSTER = ROOT / "cluster"
MANIFESTS = pytest.mark.parametrize("name", ["kubernetes_gpu.yaml", "kubernetes_tpu.yaml"])
INSTALLED_WEEKLY = "is not installed: the weekly workflow does"
SMALL = {"--training.tokens-per-batch": 512, "--training.eval-every": 0, "--training.checkpoint-every": 5}
SMALL |= {"--training.log-every": 1, "--training.num-steps": 100000}


def read_manifest(name: str) -> dict[str, dict]:
    """Returns the resources of a manifest by their kinds."""
    return {resource["kind"]: resource for resource in yaml.safe_load_all((CLUSTER / name).read_text())}


def options_of(job: dict) -> dict[str, str]:
    """Returns the options of `lingua-flax train` in a Job."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == "train"
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def ignored_statuses(job: dict) -> list[int]:
    """Returns the exit statuses that do not count as failures."""
    rules = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
    return [status for rule in rules for status in rule.get("onExitCodes", {}).get("values", [])]


@MANIFESTS
def test_manifest_fits_the_schemas_of_kubernetes(name):
    reader = pytest.importorskip("kubernetes_validate", reason=f"kubernetes-validate {INSTALLED_WEEKLY}")
    for resource in read_manifest(name).values():
        for version in ("1.31", reader.latest_version()):
            reader.validate(resource, version, strict=True)


@MANIFESTS
def test_names_in_a_manifest_agree(name):
    """Kubernetes gives pod 0 the host name JOB-0, and the address JOB-0.SERVICE if the Service selects it."""
    service, claim, job = map(read_manifest(name).get, ("Service", "PersistentVolumeClaim", "Job"))
    pod, options = job["spec"]["template"]["spec"], options_of(job)
    assert options["--coordinator"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}:1234"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert options["--process-id"] == "$(JOB_COMPLETION_INDEX)"
    assert int(options["--num-processes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    (claimed,) = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claimed["claimName"] == claim["metadata"]["name"]
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert Path(mounted[pod["volumes"][0]["name"]]) in Path(options["--workdir"]).parents


def start_pods(job: dict, toy: Path, folder: Path, **sizes: object) -> list[subprocess.Popen]:
    """Starts the commands of all pods here, with the folder as claim; each has four devices, as a TPU host does."""
    own = {name: value.replace("/runs/", f"{folder}/") for name, value in options_of(job).items()}
    here = {"--config": toy, "--devices.platform": "cpu", "--coordinator": f"127.0.0.1:{free_port()}"}
    options = own | here | SMALL | sizes
    return [
        start_command(
            "train",
            *(str(part).replace("$(JOB_COMPLETION_INDEX)", str(index)) for pair in options.items() for part in pair),
            env=simulated_devices(4),
        )
        for index in range(job["spec"]["completions"])
    ]


@pytest.mark.slow
@MANIFESTS
def test_pods_train_together_stop_in_time_and_continue(toy, tmp_path, name):
    job = read_manifest(name)["Job"]
    workdir = tmp_path / Path(options_of(job)["--workdir"]).name
    running = start_pods(job, toy, tmp_path)
    wait_for(running[0], lambda: (workdir / "metrics.jsonl").exists() and len(read_lines(workdir)) > 3)
    running[1].send_signal(signal.SIGTERM)
    for process in running:
        process.wait(timeout=job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    statuses, _, errors = zip(*finish(running), strict=True)
    assert [*{*statuses}] == ignored_statuses(job), errors
    assert "computing on 8 x cpu" in errors[0]
    last = metrics(workdir)[-1]["step"]
    ended = finish(start_pods(job, toy, tmp_path, **{"--training.num-steps": last + 3}))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert [line["step"] for line in metrics(workdir) if "loss" in line] == list(range(1, last + 4))


def test_skypilot_reads_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where it writes as soon as it is imported
    sky = pytest.importorskip("sky", reason=f"SkyPilot {INSTALLED_WEEKLY}")
    task = sky.Task.from_yaml(str(CLUSTER / "skypilot.yaml"))
    assert {each for resources in task.resources for each in resources.accelerators} > {"tpu-v5litepod-4", "H100"}
    for resources in task.resources:
        assert (resources.use_spot, resources.job_recovery["recover_on_exit_codes"]) == (True, [128 + signal.SIGTERM])
    assert task.storage_mounts["/bucket"].mode == sky.StorageMode.MOUNT


@pytest.mark.slow
def test_rented_machine_goes_on_from_what_the_one_before_left(toy, tmp_path):
    """The machines are home directories, and the bucket is a folder; the first machine is taken back."""
    missing = [tool for tool in ("rsync", "flock") if subprocess.run(["which", tool], capture_output=True).returncode]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    description, bucket = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text()), tmp_path / "bucket"
    assert list(description["file_mounts"]) == ["/bucket"]

    def rent(name: str, num_steps: int) -> subprocess.Popen:
        program = tmp_path / name / "lingua" / "bin" / "lingua-flax"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lingua_flax "$@"\n')
        program.chmod(0o755)
        small = " ".join(f"{option} {value}" for option, value in (SMALL | {"--training.num-steps": num_steps}).items())
        script = description["run"].replace("/bucket", str(bucket)).replace("sleep 60", "sleep 1")
        script = script.replace("--workdir ~/run", f"--workdir ~/run --devices.platform cpu {small}")
        environment = os.environ | PROJECT_ON_PATH | {"HOME": str(tmp_path / name), "CONFIG": toy.name}
        script = f"exec > {shlex.quote(str(tmp_path / name))}.log 2>&1\n{script}"
        return subprocess.Popen(["bash", "-c", script], cwd=toy.parent, env=environment, start_new_session=True)

    first, copied = rent("first", 100000), bucket / toy.name
    wait_for(first, lambda: list(copied.glob("checkpoints/*/commit_success.txt")))
    os.killpg(first.pid, signal.SIGTERM)
    assert [first.wait(timeout=300)] == description["resources"]["job_recovery"]["recover_on_exit_codes"]
    last = metrics(tmp_path / "first" / "run")[-1]["step"]
    assert (copied / "checkpoints" / str(last)).is_dir()
    second = rent("second", last + 3)
    assert second.wait(timeout=300) == 0, (tmp_path / "second.log").read_text()
    assert f"step {last}" in (tmp_path / "second.log").read_text()
    for folder in (copied, tmp_path / "second" / "run"):
        assert [line["step"] for line in metrics(folder) if "loss" in line] == list(range(1, last + 4))
    assert {path.name for path in (copied / "checkpoints").iterdir()} == {
        path.name for path in (tmp_path / "second" / "run" / "checkpoints").iterdir()
    }
