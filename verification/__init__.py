"""Checks anybody can make of a run on their own machine: is one that was killed the same as one that was not?"""
