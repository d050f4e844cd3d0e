"""Trains; the process gets SIGINT once SentencePiece has read all lines, and must end before it has finished."""

import os
import signal
import sys
import threading

from sentencepiece import SentencePieceTrainer

from lingua_flax.__main__ import main

training = []  # the thread in which SentencePiece works


def train(sentence_iterator, train=SentencePieceTrainer.train, **options):
    def lines():
        yield from sentence_iterator
        os.kill(os.getpid(), signal.SIGINT)

    training.append(threading.current_thread())
    train(sentence_iterator=lines(), **options)
    training.clear()


def end(status, end=os._exit):
    end(status if training and training != [threading.main_thread()] else 1)


if __name__ == "__main__":
    SentencePieceTrainer.train, os._exit = train, end
    sys.exit(main("train"))
