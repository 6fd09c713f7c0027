"""The models of bench_exported: writes each as a file of torch.export and as TorchScript, and trains it in eager Python.

    exported_step.py FOLDER FIFO_BASE MODEL [MODEL ...]

FOLDER gets MODEL.pt2, MODEL.pt, and MODEL.io with the inputs and the target (torch.jit.load reads it). Commands
"MODEL N" on FIFO_BASE + "0.commands" make N steps of fused AdamW; the answer is one line of N step times in nanoseconds.
"end" ends it.
"""

import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from compute_models import make

warnings.filterwarnings("ignore")
folder, fifo, names = sys.argv[1], sys.argv[2], sys.argv[3:]
torch.set_num_threads(1)


class Bert(nn.Module):
    """transformers' BERT for masked words, with the scores alone."""

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        self.bert = BertForMaskedLM(
            BertConfig(
                vocab_size=4096,
                hidden_size=256,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=1024,
                max_position_embeddings=128,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                torchscript=True,
            )
        )

    def forward(self, text, mask):
        return self.bert(input_ids=text, attention_mask=mask)[0]


def model_of(name):
    """The model, its inputs and its target."""
    torch.manual_seed(0)
    if name == "resnet18":
        return make(name, {})[0](), (torch.randn(8, 3, 64, 64),), torch.randint(0, 1000, (8,))
    if name == "gpt":
        sizes = {"tokens": 4096, "length": 128, "layers": 6, "heads": 4, "width": 256}
        return make(name, sizes)[0](), (torch.randint(0, 4096, (4, 128)),), torch.randint(0, 4096, (4, 128))
    mask = torch.ones(4, 128, dtype=torch.long)
    mask[1, 100:] = 0
    return Bert(), (torch.randint(0, 4096, (4, 128)), mask), torch.randint(0, 4096, (4, 128))


class Tensors(nn.Module):
    def __init__(self, tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"tensor_{i}", tensor)


class Eager:
    def __init__(self, name):
        self.model, self.inputs, self.target = model_of(name)
        self.model.train()
        before = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        shapes = {f"argument {i}": {0: torch.export.Dim.AUTO} for i in range(len(self.inputs))}
        program = torch.export.export(self.model, self.inputs, dynamic_shapes=tuple(shapes.values()))
        torch.export.save(program, f"{folder}/{name}.pt2")
        torch.jit.trace(self.model, self.inputs, check_trace=False).save(f"{folder}/{name}.pt")
        self.model.load_state_dict(before)
        torch.jit.script(Tensors([*self.inputs, self.target])).save(f"{folder}/{name}.io")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self):
        scores = self.model(*self.inputs)
        loss = F.cross_entropy(scores.flatten(0, -2), self.target.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


contestants = {name: Eager(name) for name in names}
with open(f"{fifo}0.commands") as commands, open(f"{fifo}0.replies", "w") as replies:
    for line in commands:
        words = line.split()
        if words[0] == "end":
            break
        times = []
        for _ in range(int(words[1])):
            started = time.monotonic_ns()
            contestants[words[0]].step()
            times.append(time.monotonic_ns() - started)
        print(*times, file=replies, flush=True)
