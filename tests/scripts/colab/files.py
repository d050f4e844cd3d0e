"""Stands in for google.colab.files: says what would be downloaded."""


def download(filename: str) -> None:
    print("downloading", filename)
