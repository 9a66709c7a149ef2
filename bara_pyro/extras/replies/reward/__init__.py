"""Reward models: scores of replies by a classifier that was trained on preference pairs."""

from bara_pyro.extras.replies.reward.agreement import Agreement, agreement
from bara_pyro.extras.replies.reward.bradley_terry import bradley_terry
from bara_pyro.extras.replies.reward.model import RewardModel, load_reward_model
from bara_pyro.extras.replies.reward.scoring import score_replies
from bara_pyro.extras.replies.reward.settings import RewardConfig
from bara_pyro.extras.replies.reward.training import train_reward

__all__ = [
    "Agreement",
    "RewardConfig",
    "RewardModel",
    "agreement",
    "bradley_terry",
    "load_reward_model",
    "score_replies",
    "train_reward",
]
