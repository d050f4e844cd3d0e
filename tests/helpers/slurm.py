"""Slurm on this machine: a controller, two nodes and the authentication service that they need, in one folder.

Needs Debian's slurm-wlm and munge, and root. The first node has the name of this machine, by which the tasks of a job
find each other, so the hosts file is left alone.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import HUNG_AFTER

CONFIGURATION = """
ClusterName=lingua-flax
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
KillWait=30
SlurmctldTimeout=30
SlurmdTimeout=30
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
BEGIN_SECONDS = 10  # before which a job that has been queued again cannot begin: its old credentials are revoked
RETRY_SECONDS = 35  # after a lost node, in which its old step is given up; a new one would be ended with it


def missing_program() -> str:
    """Returns why there can be no cluster here, or ""."""
    missing = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd runs as root"


class Cluster:
    """Two nodes, and how to start and look at jobs."""

    def __init__(self, folder: Path, cpus: int, environment: dict[str, str]):
        """Prepares a cluster; jobs and commands get the environment besides the one of this process."""
        host = socket.gethostname().partition(".")[0]
        self.nodes = host, f"{host}x"
        self.folder = folder
        self._environment = os.environ | environment | {"SLURM_CONF": str(folder / "slurm.conf")}
        # Ports below those that the kernel gives out, of which a job may have got one.
        ports = [20_000 + os.getpid() % 3_000 * 3 + n for n in range(3)]
        configuration = CONFIGURATION.format(host=host, folder=folder, nodes=self.nodes, ports=ports, cpus=cpus)
        (folder / "slurm.conf").write_text(configuration)
        (folder / "state").mkdir()
        with open(folder / "munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(secrets.token_bytes(64))

    def start(self) -> None:
        """Starts the daemons and waits until both nodes are idle."""
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        self.run("munged", "--force", *(f"--{option}={self.folder / name}" for option, name in files.items()))
        self.run("slurmctld")
        for node in self.nodes:
            self.start_node(node)
        self.wait(lambda: self.run("sinfo", "--noheader", "--format=%t") == "idle\n", "the nodes are not idle")

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node."""
        self.run("slurmd", "-N", node)

    def end(self) -> None:
        """Ends all jobs and daemons, and what they started."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--me", "--full")
            self.wait(lambda: not self.run("squeue", "--noheader"), "jobs do not end", seconds=60)
        own = self.processes()
        for process in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(own, timeout=10)[1]:
            process.kill()

    def processes(self, node: str = "") -> list[psutil.Process]:
        """Returns the daemons, and the tasks of jobs, or of one node only."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                is_own = environment.get("SLURM_CONF") == self._environment["SLURM_CONF"]
                command = process.cmdline()
                is_of_node = not node or environment.get("SLURMD_NODENAME") == node or command[-2:] == ["-N", node]
                if is_own and is_of_node:
                    found.append(process)
                    # It has overwritten its environment with its title.
                    found += [parent for parent in process.parents() if parent.name() == "slurmstepd"]
        return list(dict.fromkeys(found))

    def lose_node(self, node: str) -> None:
        """Kills everything on a node at once, as if its machine had lost power."""
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def run(self, *command: object) -> str:
        """Returns the output of a command that succeeds."""
        options: dict[str, Any] = {"env": self._environment, "cwd": self.folder, "timeout": HUNG_AFTER, "text": True}
        return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, **options).stdout

    def submit(self, script: Path, *arguments: object, **options: object) -> int:
        """Submits a script with arguments and options of sbatch; returns the number of the job."""
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        output = self.folder / "%j.out"
        return int(self.run("sbatch", "--parsable", f"--output={output}", *given, script, *arguments))

    def output(self, job: int) -> str:
        """Returns what a job has printed."""
        path = self.folder / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self, job: int) -> str:
        """Returns the state of a job, such as RUNNING or PENDING."""
        shown = dict(word.partition("=")[::2] for word in self.run("scontrol", "show", "job", job).split())
        return f"{shown['JobState']} {shown['ExitCode']} {shown['Restarts']}"

    def wait_for_state(self, job: int, state: str, seconds: float = 300) -> None:
        """Waits until a job has a state, exit status and number of restarts, such as "COMPLETED 0:0 1"."""
        self.wait(lambda: self.state(job) == state, lambda: f"{self.state(job)}\n{self.output(job)}", seconds)

    def begin_now(self, job: int) -> None:
        """Lets a job begin that has been queued again, which Slurm would only do after two minutes."""
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait(self, condition: Callable[[], object], message: str | Callable[[], str], seconds: float = 60) -> None:
        """Waits until a condition holds."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, message if isinstance(message, str) else message()
            time.sleep(0.05)


@contextlib.contextmanager
def slurm_cluster(folder: Path, cpus: int, environment: dict[str, str]) -> Iterator[Cluster]:
    """Yields a cluster that has been started, and ends it with all jobs."""
    cluster = Cluster(folder, cpus, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
