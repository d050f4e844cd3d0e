"""The translation corpora of TensorFlow Datasets (TFDS), by name, such as ted_hrlr_translate/pt_to_en.

The builders of TFDS download, verify and read the published archives. Archives that are there already are read from
--data.directory (by default CACHE/tfds/archives) under their published names, and from CACHE/tfds/downloads, where TFDS
keeps its own. Text is stored as the builder returns it; newstest sets of WMT contain SGML entities such as &amp;.
"""

import difflib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # registers wmt*_translate, which TFDS does only if TensorFlow is installed

from lingua_flax.data.corpora import tfds_build
from lingua_flax.data.corpora.corpus import Corpus, Pair, different_languages
from lingua_flax.data.corpora.held_out_splits import SPLITS, write_splits
from lingua_flax.data.corpora.prepared_corpus import open_prepared
from lingua_flax.data.text_files import chunks
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import UserError
from lingua_flax.host.terminal import progress_bar
from lingua_flax.options.schema import DataConfig

# Listed in error messages: TFDS cannot list which of its datasets are translation corpora.
TRANSLATION_CORPORA = ["flores", "opus", "para_crawl", "ted_hrlr_translate", "ted_multi_translate"]
TRANSLATION_CORPORA += [f"wmt{year}_translate" for year in range(13, 20)] + ["wmt_t2t_translate"]
# Every builder would ask a server for facts that are not needed, and leave an empty folder among the temporary files.
tfds.core.DatasetInfo.initialize_from_bucket = lambda self: None
_CHUNK = 1024  # records read at a time, which is much faster than one by one
_ORDER_NOTE = "pairs are in the order of TensorFlow Datasets, which is not that of the published files"


def open_tfds(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Opens one direction of a corpus of TFDS, whose config is named after a slash or determined by the languages.

    Raises UserError if the corpus or its config does not exist, is not a translation corpus or lacks the languages, and
    the errors of `tfds_build.build` and `open_prepared`.
    """
    languages = different_languages(config)
    directory = config.directory and config.directory.expanduser()
    if directory and not directory.is_dir():
        raise UserError(f"data.directory {directory}: no such folder; it must contain the published archives")
    builder_class = find_builder(config.name)
    assert builder_class is not None  # checked by open_corpus
    chosen = _choose_config(builder_class, config.name.partition("/")[2], languages)
    cache = cache_directory(config.cache_directory) / "tfds"

    def builder_in(folder: Path) -> tfds.core.DatasetBuilder:
        return builder_class(data_dir=folder, config=chosen or None)

    builder = builder_in(cache / "downloads")
    name = "/".join(filter(None, [builder.name, chosen]))
    registered = sorted((url, info.checksum) for url, info in tfds_build.registered_files(builder).items())

    def write(folder: Path) -> None:
        builder = builder_in(folder / "tfds")
        tfds_build.build(builder, name, folder, cache / "downloads", directory or cache / "archives")
        available = [split for split, info in builder.info.splits.items() if info.num_examples]
        if "train" not in available:
            raise UserError(f"data.name: {name} has nothing to train on; its splits are {', '.join(available)}")
        order = sorted(available, key=lambda split: (*SPLITS, split).index(split))
        pairs = {split: _read(builder, split, languages) for split in order}
        write_splits(
            folder,
            pairs,
            [_ORDER_NOTE],
            hold_out=not train_only,
            held_out_file=config.held_out,
            describe=f"data.name: {name}, {{}}: {{}}".format,
        )
        shutil.rmtree(folder / "tfds")

    made_from = [tfds.__version__, name, str(builder.version), registered, train_only]
    return open_prepared(config, "tfds", made_from, write, name)


def find_builder(name: str) -> type[tfds.core.DatasetBuilder] | None:
    """Returns TFDS's builder for a corpus, or None if there is none; a config after a slash is ignored."""
    dataset = name.partition("/")[0]
    if not re.fullmatch(r"\w+", dataset):  # TFDS would look up other names on the web
        return None
    try:
        return tfds.builder_cls(dataset)
    except (ValueError, ImportError):  # ImportError: its module needs a package that is not installed
        return None


def _choose_config(builder_class: type[tfds.core.DatasetBuilder], wanted: str, languages: Sequence[str]) -> str:
    """Returns the wanted config or, if none is named, the only one with both languages; raises UserError otherwise."""
    name = builder_class.name
    codes_of = _languages_of_configs(builder_class)
    if not any(codes_of.values()):
        raise UserError(
            f"data.name: {name} of TensorFlow Datasets is not a corpus of sentence pairs in named languages; "
            f"those are {', '.join(TRANSLATION_CORPORA)}"
        )
    if wanted:
        if wanted not in codes_of:
            nearest = difflib.get_close_matches(wanted, codes_of, n=1)
            hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
            raise UserError(f'data.name: {name} has no config "{wanted}"{hint}; it has {", ".join(codes_of)}')
        for option, code in zip(("source_language", "target_language"), languages, strict=True):
            if code not in codes_of[wanted]:
                has = " and ".join(codes_of[wanted])
                raise UserError(f'data.{option}: {name}/{wanted} has no language "{code}"; it has {has}')
        return wanted
    fitting = [config for config, codes in codes_of.items() if set(codes) >= set(languages)]
    if not fitting:
        available = ", ".join(sorted({"-".join(codes) for codes in codes_of.values()}))
        if len(codes_of) == 1:
            available = ", ".join(*codes_of.values())
        wanted_pair = "-".join(languages)
        raise UserError(f"data.source_language, data.target_language: {name} has no {wanted_pair}; it has {available}")
    if len(fitting) > 1:
        raise UserError(f"data.name: {name} has several corpora; name one: {name}/{f', {name}/'.join(fitting)}")
    return fitting[0]


def _languages_of_configs(builder_class: type[tfds.core.DatasetBuilder]) -> dict[str, list[str]]:
    """Returns the languages of each config by name ("" if there are no configs); none if it has no translations."""
    codes_of = {}
    for config in [config.name for config in builder_class.BUILDER_CONFIGS] or [""]:
        try:
            features = builder_class(config=config or None, data_dir="nowhere").info.features
        except (ValueError, ImportError):  # an abstract builder, or one that needs a package that is not installed
            features = None
        codes_of[config] = _languages(features)
    return codes_of


def _languages(features: Any) -> list[str]:
    """Returns the languages of a builder's features; none if they are not translations."""
    if isinstance(features, tfds.features.Translation):
        return list(features)
    variable = _variable_feature(features)
    return list(features[variable].languages or []) if variable else []


def _variable_feature(features: Any) -> str | None:
    """Returns the name of the feature, if any, whose translations are in different languages in each record."""
    if not isinstance(features, tfds.features.FeaturesDict):
        return None
    kind = tfds.features.TranslationVariableLanguages
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)


def _read(builder: tfds.core.DatasetBuilder, split: str, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yields the pairs of a split that are in both languages, with a progress bar on a terminal."""
    records = builder.as_data_source(split)
    variable = _variable_feature(builder.info.features)
    with progress_bar(len(records), f"converting {split}") as advance:
        for numbers in chunks(range(len(records)), _CHUNK):
            for record in records.__getitems__(numbers):
                if variable:
                    translations = record[variable]
                    codes = [code.decode() for code in translations["language"]]
                    record = dict(zip(codes, translations["translation"], strict=True))
                if set(languages) <= record.keys():
                    yield Pair(*(record[code].decode() for code in languages))
            advance(len(numbers))
