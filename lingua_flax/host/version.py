"""The version of the program, shown by --version and saved with every checkpoint."""

VERSION = "1.0.0"
