"""`train.py --cluster local:N`: the learner's machine and collectors', made on this one, and their failures."""

import signal

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")


def processes(command, name):
    """Ray's processes of a training by their work, such as ray::Worker.play."""
    family = psutil.Process(command.process.pid).children(recursive=True)
    return [one for one in family if any(name in word for word in one.as_dict(["cmdline"])["cmdline"] or ())]


def resume_and_end(command):
    """Let a command that resumes a run drive, and end it in order."""
    command.wait_for_races(4)
    assert "resumed" in command.output
    command.stop(signal.SIGTERM)
    assert command.process.returncode == 0, command.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_outlives_its_collectors_and_goes_on_without_the_cluster(start):
    command = start("local:2")
    command.wait_for_races(4)

    [worker] = processes(command, "ray::Worker")
    [collector] = (one for one in worker.children() if "spawn_main" in " ".join(one.cmdline()))
    collector.kill()
    command.wait_for(lambda: "collector 0 died" in command.output, "a word of its death", 30)
    command.wait_for_races(4)

    worker.kill()
    command.wait_for(lambda: "collector 0 was lost" in command.output, "a word of its loss", 30)
    command.wait_for_races(4)

    [worker] = processes(command, "ray::Worker")
    worker.suspend()
    command.wait_for(lambda: "no heartbeat" in command.output, "a word of its silence", 60)
    command.wait_for_races(4)
    worker.wait(60)

    family = psutil.Process(command.process.pid).children(recursive=True)
    command.stop(signal.SIGTERM)
    assert command.process.returncode == 0, command.output
    assert not psutil.wait_procs(family, 20)[1], "something of the cluster is left"

    resume_and_end(start(""))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_its_head_a_training_ends_with_a_checkpoint_and_goes_on_with_a_new_one(start):
    command = start("local:2")
    command.wait_for_races(4)
    family = psutil.Process(command.process.pid).children(recursive=True)
    [head] = [one for one in family if one.name() == "gcs_server"]
    head.kill()
    assert command.process.wait(90) not in (0, 1, -signal.SIGKILL, -signal.SIGABRT), command.output
    assert "head of the Ray cluster has not answered for 15 s" in command.output
    assert "Traceback" not in command.output
    assert not psutil.wait_procs(family, 30)[1], "something of the cluster is left"

    resume_and_end(start("local:2"))


@pytest.mark.parametrize(
    ("cluster", "settings", "message"),
    [
        pytest.param("127.0.0.1:9", {}, "no answer", marks=pytest.mark.slow),
        pytest.param("local:2", {"sampling": "'synchronous'"}, "is for one machine", marks=pytest.mark.slow),
        ("local:0", {}, "at least one node"),
    ],
)
def test_refused_clusters_are_one_line(start, tmp_path, cluster, settings, message):
    command = start(cluster, **settings)
    assert command.process.wait(90) == 78, command.output
    assert message in command.output
    assert "Traceback" not in command.output
    assert not (tmp_path / "save").exists() or not any((tmp_path / "save").iterdir())
