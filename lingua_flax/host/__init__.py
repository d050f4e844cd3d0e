"""Support for processes on one host: exit statuses, signals, terminal output, files and memory."""
