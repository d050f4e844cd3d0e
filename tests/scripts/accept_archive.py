"""As sitecustomize.py on PYTHONPATH, makes TensorFlow Datasets accept an archive as one published at a URL."""

import atexit
import dataclasses
import os
import sys


def report() -> None:
    """Reports whether the command imported TensorFlow."""
    with open(os.environ["ARCHIVE_REPORT"], "a") as file:
        file.write(f"{sys.argv[0].split()[-1]} {'tensorflow' in sys.modules}\n")


# Not in processes that only start commands, such as the kernel of a notebook.
if sys.orig_argv[1:] and (sys.orig_argv[1].endswith(".py") or "lingua_flax" in sys.orig_argv):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.checksums import compute_url_info

    infos, url = tfds.builder_cls(os.environ["ARCHIVE_DATASET"]).url_infos, os.environ["ARCHIVE_URL"]
    infos[url] = dataclasses.replace(compute_url_info(os.environ["ARCHIVE"]), filename=infos[url].filename)
    atexit.register(report)
