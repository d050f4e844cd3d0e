"""Ids of SentencePiece's special pieces; padding is 0 because packed rows start as arrays of zeros."""

PAD_ID = 0
EOS_ID = 1
BOS_ID = 2
UNK_ID = 3
