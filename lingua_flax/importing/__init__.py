"""Networks that others have trained, as workdirs: MarianMT, as transformers stores it."""
