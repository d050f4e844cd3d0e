"""The version of the program, shown by --version and kept in the record of every checkpoint."""

VERSION = "1.0.0"
