"""Trains; the process gets SIGINT once SentencePiece has read all lines, and must end before it has finished."""

import os
import signal
import sys
import threading

from sentencepiece import SentencePieceTrainer

from lingua_flax.__main__ import main


def train(sentence_iterator, train=SentencePieceTrainer.train, **options):
    assert threading.current_thread() is not threading.main_thread()  # which has to handle signals

    def lines():
        yield from sentence_iterator
        os.kill(os.getpid(), signal.SIGINT)

    train(sentence_iterator=lines(), **options)
    os._exit(1)


if __name__ == "__main__":
    SentencePieceTrainer.train = train
    sys.exit(main("train"))
