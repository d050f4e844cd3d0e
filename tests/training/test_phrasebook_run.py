"""The promise of `make train`: the phrasebook is learned, including its contrast pairs."""

import json

import pytest


@pytest.mark.slow
def test_phrasebook_is_learned(run, tmp_path):
    workdir = tmp_path / "tiny"
    done = run("train", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600)
    assert done.returncode == 0, done.stderr
    for split in ("test", "contrast"):
        done = run("evaluate", "--workdir", workdir, "--split", split, "--json", tmp_path / f"{split}.json")
        assert done.returncode == 0, done.stderr
    test, contrast = (json.loads((tmp_path / f"{split}.json").read_text()) for split in ("test", "contrast"))
    assert test["bleu"] >= 90
    assert "contrast_pairs" not in test
    assert contrast["contrast_pairs"] >= 300
    assert contrast["contrast_right"] >= 0.95 * contrast["contrast_pairs"]
    masked = contrast["contrast_masked_pairs"]
    assert masked == contrast["contrast_right"]
    assert contrast["contrast_flipped"] > 0.8 * masked
    assert contrast["contrast_flipped_control"] < 0.1 * masked
    assert f"{contrast['contrast_right']} of {contrast['contrast_pairs']}" in done.stdout
