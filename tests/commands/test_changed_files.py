"""Files that change after a run was trained on them: nothing that depends on the old ones goes on unnoticed."""

import itertools
import json
import re
import shutil

import pytest

from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.runs.checkpoint import METADATA_FORMAT, DamagedCheckpoint, check_corpus
from tests.processes import metrics
from tests.toy import write_pairs


def test_split_held_out_of_other_pairs_is_refused(trained, toy, succeed, refused, tmp_path):
    """The config names other training pairs than those of the run, and no other splits."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    write_pairs(tmp_path, "train", list(itertools.product(range(10), range(10), range(3))))
    config = (workdir / "config.toml").read_text(encoding="utf-8").replace(f"{toy.parent}/train", f"{tmp_path}/train")
    only_train = re.sub("^(validation|test)_(source|target) = .*", "", config, flags=re.MULTILINE)
    (workdir / "config.toml").write_text(only_train, encoding="utf-8")
    said = "its corpus has changed since checkpoint (80|160|240), so the"
    for program, *command in (
        ("evaluate", "--beam-size", 1),
        ("evaluate", "--split", "validation", "--score"),
        ("distill", "--output", tmp_path / "student.jsonl"),
    ):
        refused(said, program, "--workdir", workdir, *command)
    files = ("--source", toy.parent / "test.en", "--reference", toy.parent / "test.fr")
    succeed("evaluate", "--workdir", workdir, *files, "--beam-size", 1)

    file = workdir / "checkpoints" / "240" / "metadata" / "metadata"
    earlier = json.loads(file.read_text()) | {"format": METADATA_FORMAT - 1}
    del earlier["metadata_digest"]
    file.write_text("{")
    with pytest.raises(DamagedCheckpoint, match="its metadata cannot be read"):
        check_corpus(workdir, 240, "", "train")
    file.write_text(json.dumps(earlier | {"metadata_digest": json_digest(earlier)}))
    with pytest.raises(UserError, match="in a format that this version"):
        check_corpus(workdir, 240, "", "train")


def test_replaced_validation_set_is_not_compared_with_the_best_of_the_old_one(trained, succeed, tmp_path):
    """The first validation on sentences that are never right is the best one on them, and patience begins with it."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    options = ("--training.eval-every", 40, "--training.patience", 3)
    best = re.search(r"best validation .* at step (\d+)", trained[1].stdout)[1]
    unvalidated = ("--training.eval-every", 0, "--training.patience", 0, "--training.keep-checkpoints", 1)
    done = succeed("train", "--workdir", workdir, *unvalidated, "--training.num-steps", 250)
    assert "the validation set or its scoring has changed" not in done.stderr
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {best, "250"}
    write_pairs(tmp_path, "other", [[n, n] for n in range(10)] * 2)
    other = ("--data.validation-source", tmp_path / "other.fr", "--data.validation-target", tmp_path / "other.en")
    done = succeed("train", "--workdir", workdir, *options, *other, "--training.num-steps", 260)
    assert "the validation set or its scoring has changed" in done.stderr
    assert "validation at step 260" in done.stderr
    assert "the best so far" in done.stderr
    before, after = [line["validation_chrf"] for line in metrics(workdir) if "validation_chrf" in line][-2:]
    assert after < before
