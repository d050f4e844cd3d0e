"""The ids that SentencePiece is trained with; padding is 0 because the packing of rows fills with zeros."""

PAD_ID = 0
EOS_ID = 1
BOS_ID = 2
UNK_ID = 3
