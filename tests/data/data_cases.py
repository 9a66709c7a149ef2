"""Small tokenizers of the three common kinds."""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
# The pre-tokenizer of GPT-4 and Qwen: a single sign may join the letters after it, so ":A" can be one token.
GLUE = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def byte_level(merges=(), **special):
    """A byte-level BPE tokenizer like Qwen's, with a few merges and no token of its own around a text."""
    merged = ["".join(pair) for pair in merges]
    vocabulary = {token: i for i, token in enumerate([*BYTES, *merged, "<|end|>"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GLUE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", **special)


def word_level(words):
    """One token a word; anything else is unknown."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "<end>", *words])}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")


def sentence_piece():
    """Like Llama's: a space is put before a text, BOS before and EOS behind it, and "_A" is a token."""
    letters = [chr(c) for c in range(32, 127) if chr(c) != " "] + ["\n", "▁"]
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *letters, "▁A", "▁B"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "A"), ("▁", "B")], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )
