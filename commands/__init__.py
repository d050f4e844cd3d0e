"""The commands. The scripts at the top level install the signal handler before they import any of these modules."""
