"""Small tokenizers of every kind that language models have."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "It's what they don't say , isn't it ? The owl 's grey ; I 'm not . \n\n Q: why ?\n",
    "漢字とかな、日本語の文。 Ωμέγα \N{OWL}\N{FOX FACE} naïve café — “so” …",
    "def f(x):\n    return x ** 2\n\n\nclass A:\n    pass\n",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2 and Qwen: a character may be several tokens, and a token end within one."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    own.train_from_iterator(TEXT * 20, trainer)
    return wrapped(own)


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2: bytes of characters that have no token, the first space of a text taken away."""
    words = sorted({w for text in TEXT for w in text.replace("\n", " ").split(" ") if w.isascii() and w})
    pieces = [*(f"▁{word}" for word in words), *words, "▁", "▁▁", "\n", "Q:", "'"]
    vocabulary = dict.fromkeys([*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces])
    own = Tokenizer(
        models.BPE({p: i for i, p in enumerate(vocabulary)}, [], unk_token="<unk>", byte_fallback=True)
    )
    own.normalizer = normalizers.Prepend("▁")
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(own)


def word_piece() -> PreTrainedTokenizerFast:
    """As BERT: no spaces but between words, tidied."""
    own = Tokenizer(models.WordPiece(unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    own.train_from_iterator(TEXT * 20, trainer)
    return wrapped(own)


def words() -> PreTrainedTokenizerFast:
    """As the toys of these tests: a token a word, no decoder."""
    known = dict.fromkeys([*SPECIAL, *" ".join(TEXT).split()])
    return wrapped(Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>")))


def wrapped(own: Tokenizer) -> PreTrainedTokenizerFast:
    own.add_special_tokens([AddedToken("<|tool|>", special=True)])  # special, and of no name
    found = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", pad_token="<pad>")
    assert "<|tool|>" not in found.all_special_tokens
    found.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    return found
