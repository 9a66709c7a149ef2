"""How many tokens a language model takes."""

from transformers import PreTrainedModel

NAMES = ("max_position_embeddings", "max_seq_len")  # MPT has the second one alone


def positions(lm: PreTrainedModel) -> int | None:
    """Return the most tokens that a model can read; None where its configuration sets no bound.

    Learnt positions end there. Rotary ones can be computed beyond, where the model was not trained.
    """
    text = lm.config.get_text_config()
    found = (getattr(text, name, None) for name in NAMES)
    most = next((value for value in found if isinstance(value, int) and value > 0), None)
    embeddings = getattr(lm.base_model, "embeddings", None)
    # RoBERTa's count begins behind the padding token's own place.
    pad = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return most if most is None or pad is None else most - int(pad) - 1
