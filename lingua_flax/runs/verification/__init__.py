"""Verification for users to run on their own machine: a run that was killed and resumed equals one that was not."""
