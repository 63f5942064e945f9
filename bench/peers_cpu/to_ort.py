"""A Hugging Face folder for ONNX Runtime GenAI, int4: `PYTHON to_ort.py FOLDER TARGET CACHE`."""

import sys

from onnxruntime_genai.models import builder


def with_flat_rope(make):
    """The builder reads rope settings as they were before transformers 5 nested them."""

    def changed(self, config, *arguments, **options):
        if isinstance(getattr(config, "rope_parameters", None), dict):
            config.rope_theta, config.rope_local_base_freq = 1e6, 1e4
            config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
        make(self, config, *arguments, **options)

    return changed


builder.Gemma3Model.__init__ = with_flat_rope(builder.Gemma3Model.__init__)
source, target, cache = sys.argv[1:]
what = (None, source, target, "int4", "cpu", cache)
asked = ["int4_accuracy_level=4", "int4_block_size=32"]
builder.create_model(*what, **builder.parse_extra_options(*what, asked))
