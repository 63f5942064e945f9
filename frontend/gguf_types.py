"""Numbers that GGUF uses for types: of metadata values, and of tensors (ggml.h)."""

# Metadata value types with a fixed size, as struct and numpy formats.
SCALAR_FORMATS: dict[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING = 8
ARRAY = 9

GGML_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4",
    41: "Q1_0", 42: "Q2_0",
}  # fmt: skip

SUPPORTED_TYPE_NAMES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
)  # fmt: skip
_FOREIGN_TYPE_NAMES = ("I8", "I16", "I32", "I64", "F64")

# Tensor types that can be placed in the file, by inferc's own names.
STORED_TYPES: dict[int, str] = {
    number: name.lower()
    for number, name in GGML_TYPES.items()
    if name in SUPPORTED_TYPE_NAMES or name in _FOREIGN_TYPE_NAMES
}
