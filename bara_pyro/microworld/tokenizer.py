"""The word-level tokenizer: one token per word, words separated by white space."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from bara_pyro.microworld.words import END, PAD, UNKNOWN, base_words, make_names
from bara_pyro.microworld.world import NUM_NEWCOMERS, NUM_RESIDENTS


def vocabulary() -> dict[str, int]:
    """Return the id of every word; the names come last."""
    words = base_words() + make_names(NUM_RESIDENTS + NUM_NEWCOMERS)
    return {word: i for i, word in enumerate(words)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer, which pads on the left and adds no special tokens."""
    core = Tokenizer(WordLevel(vocabulary(), unk_token=UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=UNKNOWN, pad_token=PAD, eos_token=END, padding_side="left"
    )
