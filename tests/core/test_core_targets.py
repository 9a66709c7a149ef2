import copy

import pytest
import torch
from core_cases import CONFIGS, backbone
from torch import nn

from bara_pyro.errors import BackboneError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets, head_path

DEFAULTS = {
    "qwen2": {"q_proj", "v_proj", "lm_head"},
    "qwen2-tied": {"q_proj", "v_proj", "lm_head"},
    "llama": {"q_proj", "v_proj", "lm_head"},
    "llama-tied": {"q_proj", "v_proj", "lm_head"},
    "gpt_neox": {"query_key_value", "lm_head"},
    "gpt2": {"c_attn", "lm_head"},
}


def last_names(targets: list) -> set[str]:
    return {target.path.rsplit(".", 1)[-1] for target in targets}


@pytest.mark.parametrize("arch", CONFIGS)
def test_default_targets_are_query_value_and_output(arch: str) -> None:
    targets = find_targets(backbone(arch).lm)
    assert last_names(targets) == DEFAULTS[arch]
    body = len(DEFAULTS[arch]) - 1
    assert len(targets) == 2 * body + 1  # two layers, one head
    assert [t.index for t in targets] == list(range(len(targets)))
    assert [t.is_head for t in targets] == [False] * (2 * body) + [True]


@pytest.mark.parametrize("arch", CONFIGS)
def test_widths_are_those_that_the_layer_maps(arch: str) -> None:
    # Run each layer: GPT-2's Conv1D keeps its weight transposed, so the shape of the weight proves nothing.
    lm = backbone(arch).lm
    for target in find_targets(lm, ".*"):
        out = lm.get_submodule(target.path)(torch.zeros(2, target.in_features))
        assert out.shape == (2, target.out_features), target.path


@pytest.mark.parametrize("arch", CONFIGS)
def test_all_linear_is_everything_but_the_head(arch: str) -> None:
    lm = backbone(arch).lm
    kinds = {"Linear", "Conv1D"}
    expected = [n for n, m in lm.named_modules() if type(m).__name__ in kinds and n != head_path(lm)]
    assert [t.path for t in find_targets(lm, "all-linear")] == expected
    assert expected
    with_head = find_targets(lm, [head_path(lm), "all-linear"])
    assert [t.path for t in with_head] == [*expected, head_path(lm)]


def test_a_list_matches_whole_paths_or_their_ends(qwen: Backbone) -> None:
    assert last_names(find_targets(qwen.lm, ["o_proj"])) == {"o_proj"}
    one = find_targets(qwen.lm, ["layers.1.self_attn.k_proj"])
    assert [t.path for t in one] == ["model.layers.1.self_attn.k_proj"]
    # An end of a name is not an end of a path.
    with pytest.raises(BackboneError, match=r"'proj' matches no linear layer"):
        find_targets(qwen.lm, ["proj"])


def test_the_order_is_the_models_and_repeats_count_once(qwen: Backbone) -> None:
    targets = find_targets(qwen.lm, ["lm_head", "q_proj", "q_proj"])
    paths = [f"model.layers.{i}.self_attn.q_proj" for i in range(2)]
    assert [t.path for t in targets] == [*paths, "lm_head"]


def test_a_string_is_a_regular_expression_for_the_whole_path(qwen: Backbone) -> None:
    targets = find_targets(qwen.lm, r".*\.1\..*(up|down)_proj")
    assert [t.path for t in targets] == [f"model.layers.1.mlp.{n}_proj" for n in ("up", "down")]
    with pytest.raises(BackboneError, match="matches no linear layer"):
        find_targets(qwen.lm, "q_proj")  # a fragment, not the whole path


@pytest.mark.parametrize("wrong", [["q_proj", "query"], r".*nothing.*"])
def test_no_match_names_the_layers_there_are(qwen: Backbone, wrong: object) -> None:
    with pytest.raises(
        BackboneError, match=r"down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj"
    ):
        find_targets(qwen.lm, wrong)


@pytest.mark.parametrize(("wrong", "says"), [("(", "not a valid regular expression"), ([], "empty")])
def test_unusable_patterns(qwen: Backbone, wrong: object, says: str) -> None:
    with pytest.raises(BackboneError, match=says):
        find_targets(qwen.lm, wrong)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by PEFT
@pytest.mark.parametrize("names", [["q_proj", "down_proj", "lm_head"], ["o_proj"]])
def test_top_layers_are_pefts_layers_to_transform(qwen: Backbone, names: object) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=names, layers_to_transform=[1])
    theirs = peft.get_peft_model(copy.deepcopy(qwen.lm), config).base_model.targeted_module_names
    found = find_targets(qwen.lm, names, 1)
    assert [target.path for target in found] == theirs
    assert [target.index for target in found] == list(range(len(found)))
    assert find_targets(qwen.lm, names, 2) == find_targets(qwen.lm, names)  # of two layers


@pytest.mark.parametrize("number", [0, 3, 1.5, True])
def test_a_wrong_number_of_top_layers_is_refused(qwen: Backbone, number: object) -> None:
    with pytest.raises(BackboneError, match=rf"top_layers={number} .* 1 to 2"):
        find_targets(qwen.lm, None, number)


def test_modules_below_the_top_layers_are_refused(qwen: Backbone) -> None:
    with pytest.raises(BackboneError, match="none of these modules is in the last 1 of 2 layers"):
        find_targets(qwen.lm, ["layers.0.self_attn.q_proj"], 1)


def test_a_model_without_output_embedding_is_refused(qwen: Backbone) -> None:
    with pytest.raises(BackboneError, match="no output embedding"):
        find_targets(qwen.lm.base_model)


def test_other_kinds_of_layer_are_refused() -> None:
    from bara_pyro.lm.targets import widths

    with pytest.raises(BackboneError, match="Embedding"):
        widths(nn.Embedding(3, 4))


@pytest.mark.parametrize("pattern", ["(([a-z._0-9])+.?)+!", "(a+)+$", "(.*)*(.*)*x"])
def test_an_expression_that_would_never_end_ends(qwen: Backbone, pattern: str) -> None:
    """Python's own `re` tries each of them for longer than anybody waits."""
    with pytest.raises(BackboneError, match="matches no linear layer"):
        find_targets(qwen.lm, pattern)


@pytest.mark.parametrize("pattern", ["a)|(b", r"(.)\1", "(?!x).*", "((a{999}){999}){999}", "\ud800"])
def test_an_expression_that_cannot_be_matched_in_linear_time_is_refused(qwen: Backbone, pattern: str) -> None:
    with pytest.raises(BackboneError, match="not a valid regular expression"):
        find_targets(qwen.lm, pattern)
