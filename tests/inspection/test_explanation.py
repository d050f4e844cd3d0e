"""How an attention weight is made: every vector compared with the exported NumPy network, which records its own."""

import itertools

import numpy as np
import pytest

from lingua_flax.export.numpy_translator import Network
from lingua_flax.export.safetensors_model import write_safetensors
from lingua_flax.inspection.explanation import Place, explain
from lingua_flax.options.schema import DataConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from tests.helpers.networks import encoded, random_translator

VARIANTS = ({}, {"norm": "post"}, {"positions": "rotary", "qk_norm": True})


class RecordingNetwork(Network):
    """Keeps what every attention sublayer reads, adds and weighs, by the name of the sublayer."""

    def __init__(self, folder):
        super().__init__(folder)
        self.recorded = {}

    def residual(self, name, x, sublayer):
        def recording(y, at):
            output = sublayer(y, at)
            self.recorded.setdefault(name, {}).update(stream=x, read=y, output=output)
            return output

        after = super().residual(name, x, recording)
        self.recorded[name]["after"] = after
        return after

    def attention(self, name, x, memory, *, causal=False):
        query, keys, values = (
            self.heads(source @ self.parameters[f"{name}.{part}.kernel"])
            for part, source in (("query", x), ("key", memory), ("value", memory))
        )
        if self.model["qk_norm"]:
            query, keys = self.rms_norm(f"{name}.query_norm", query), self.rms_norm(f"{name}.key_norm", keys)
        if self.model["positions"] == "rotary" and (memory is x or self.model["rotary_cross_attention"]):
            query, keys = self.rotate(query), self.rotate(keys)
        self.recorded.setdefault(name, {}).update(query=query, keys=keys, values=values, memory=memory)
        return super().attention(name, x, memory, causal=causal)


@pytest.mark.parametrize("options", VARIANTS)
def test_every_vector_is_that_of_the_numpy_network(tmp_path, options):
    translator = random_translator(num_decoder_layers=2, **options)
    write_safetensors(translator, DataConfig(), tmp_path)
    network = RecordingNetwork(tmp_path)
    (source, target), *_ = zip(*encoded(translator), strict=True)
    memory = network.encode(source)
    logits = network.logits(memory, [BOS_ID, *target[:-1]])
    close = {"atol": 2e-5, "rtol": 2e-5}
    for attention, layer, head in itertools.product(("encoder", "decoder", "cross"), range(2), range(2)):
        query = (len(source) if attention == "encoder" else len(target)) - 1
        explanation = explain(translator, source, target, (), Place(attention, layer, head, query))
        stack, part = ("decoder", "cross") if attention == "cross" else (attention, "self")
        own, recorded = explanation.vectors, network.recorded[f"{stack}.{layer}.{part}_attention"]
        width = len(own["query_vector"])
        vector, keys, values = recorded["query"][head, query], recorded["keys"][head], recorded["values"][head]
        scores = keys @ vector / np.sqrt(width)
        weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        expected = {name: recorded[name][query] for name in ("stream", "read", "output", "after")}
        expected |= {"memory": recorded["memory"], "query_vector": vector, "keys": keys, "values": values}
        for name, array in (expected | {"weights": weights}).items():
            np.testing.assert_allclose(own[name], array, **close, err_msg=f"{attention} {name}")
        np.testing.assert_allclose(own["heads"][head * width : (head + 1) * width], weights @ values, **close)
        assert own["mask"].all()  # the last query may attend to everything
    allowed = np.delete(np.arange(len(logits)), [PAD_ID, BOS_ID, UNK_ID])
    np.testing.assert_allclose(explanation.logits[allowed], logits[allowed], atol=1e-4)
    assert explain(translator, source, target, (), Place("encoder", 0, 0, 0)).logits.size == 0
