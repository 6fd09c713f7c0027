"""A data set whose samples differ with each reading, as augmented images do: it draws from all streams that dtrain seeds."""
import random

import numpy
import torch
from torch.utils.data import TensorDataset


class DrawingData(TensorDataset):
    def __getitem__(self, index):
        inputs, labels = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(12) + 0.1 * random.random() + 0.1 * float(numpy.random.rand()), labels
