"""Reward models: scores of replies by a classifier with one output."""

from bara_pyro.extras.replies.reward.model import RewardModel, load_reward_model
from bara_pyro.extras.replies.reward.scoring import score_replies

__all__ = ["RewardModel", "load_reward_model", "score_replies"]
