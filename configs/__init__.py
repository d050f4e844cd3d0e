"""The typed configuration, its command line, and what every other package may assume: ids and errors."""
