"""A state of a script's own, for session.keep(): in a tensor, and in a number."""
import torch


class Average:
    """Of the losses so far."""

    def __init__(self):
        self.value, self.count = torch.zeros(()), 0

    def add(self, loss):
        self.count += 1
        self.value = self.value + (loss.detach() - self.value) / self.count

    def state_dict(self):
        return {"value": self.value, "count": self.count}

    def load_state_dict(self, state):
        self.value, self.count = state["value"], state["count"]
