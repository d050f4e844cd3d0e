"""As sitecustomize.py on PYTHONPATH, sends a signal to its process: when it imports a module, or as it exits."""

import atexit
import os
import sys

moment = os.environ["MOMENT"]  # the name of a module, or a stage of the exit


def send(kill=os.kill, process=os.getpid(), number=int(os.environ["NUMBER"])):
    kill(process, number)


class AtImport:
    def find_spec(self, name, path, target=None):
        if name == moment:
            send()
        if name == "lingua_flax.commands" and moment == "exit functions":
            atexit.register(send)


class Last:
    def __del__(self, send=send):
        send()


sys.meta_path.insert(0, AtImport())
if moment == "last exit function":
    atexit.register(send)  # registered first, so called last
if moment == "end of all modules":
    last = Last()
