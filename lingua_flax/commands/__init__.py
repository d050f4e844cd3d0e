"""The commands of the program lingua-flax, which installs the signal handler before it imports any of them."""
