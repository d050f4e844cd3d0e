"""What every command needs of the host it runs on: exit statuses, signals, terminal, files, memory."""
