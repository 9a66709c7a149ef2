"""A tiny Llama as a GGUF file, written as llama.cpp's own converter lays it out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

WORDS = [*"abcdefgh", "Ġ", "Ġa", "Ġb", "<|end|>"]
MERGES = ["Ġ a", "Ġ b"]
HEADS, KV_HEADS = 2, 1
# llama.cpp's name of each matrix of a block.
BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        initializer_range=0.2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, Hugging Face halves: rows of queries and keys change places."""
    size = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, size, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, lm: LlamaForCausalLM, *, quantised: bool = False) -> None:
    """Write the file; where it is quantised, `lm` gets the weights that the file holds."""
    c = lm.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_dimension_count(c.hidden_size // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 1) + [3])
    writer.add_token_merges(MERGES)
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(len(WORDS) - 1)
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for layer in range(c.num_hidden_layers):
        names |= {f"blk.{layer}.{own}": f"model.layers.{layer}.{theirs}" for own, theirs in BLOCK.items()}
    kind = gguf.GGMLQuantizationType.Q8_0
    for own, theirs in names.items():
        parameter = lm.get_parameter(f"{theirs}.weight")
        value = parameter.detach().numpy().copy()
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(own.rsplit(".", 1)[-1])
        value = value if heads is None else interleaved(value, heads)
        if quantised and value.ndim == 2:
            packed = gguf.quants.quantize(value, kind)
            writer.add_tensor(f"{own}.weight", packed, raw_dtype=kind)
            read = gguf.quants.dequantize(packed, kind)
            if heads is not None:
                size = read.shape[0] // heads // 2
                read = read.reshape(heads, size, 2, -1).swapaxes(1, 2).reshape(read.shape)
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(read.copy()))
        else:
            writer.add_tensor(f"{own}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., tuple[Path, LlamaForCausalLM]]:
    def make(*, quantised: bool = False) -> tuple[Path, LlamaForCausalLM]:
        lm, path = tiny_llama(), tmp_path / "tiny.gguf"
        write_gguf(path, lm, quantised=quantised)
        return path, lm

    return make
