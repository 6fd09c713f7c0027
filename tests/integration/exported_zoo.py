"""Models that people train, for torch.export, small and with random weights: of torchvision, timm, transformers, plain.

Each has dropout, drop path or batch norm as its library sets it, so that train and evaluation mode differ.
"""

import warnings
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

WORDS, LENGTH, CLASSES, SIDE = 97, 12, 5, 32
# Batch norm over four numbers, as deep models have it of smaller pictures, makes large differences of rounding.
BIG_SIDE = 64
# GoogLeNet and ResNet-18 multiply a difference in a weight's last bit by 10^4 in a step: a ReLU behind batch norm turns. PyTorch's
# fused AdamW rounds the last 1 to 7 elements of a tensor otherwise than those before them, and where they are among a
# rank's parameters depends on the number of ranks. With a multiple of 8 classes no tensor of the model has such elements.
MANY_CLASSES = 16

warnings.filterwarnings("ignore")


def mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


class Recurrent(nn.Module):
    """The scores, and the state that goes on to the next piece of text."""

    def __init__(self, kind):
        super().__init__()
        self.embedding, self.recurrent = (
            nn.Embedding(WORDS, 16),
            kind(16, 24, num_layers=2, batch_first=True, dropout=0.1),
        )
        self.out = nn.Linear(24, CLASSES)

    def forward(self, text):
        h, state = self.recurrent(self.embedding(text))
        return self.out(h[:, -1]), state


class TwoTowers(nn.Module):
    """Pictures and texts: the logit of each pair."""

    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16)
        )
        self.text = nn.EmbeddingBag(WORDS, 16, mode="mean")

    def forward(self, picture, text):
        return (self.picture(picture) * self.text(text)).sum(1)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 12))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class OwnLoss(nn.Module):
    """Returns its loss, with a part that is computed without autocast, and partly without gradients."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(12, 16), nn.Linear(16, CLASSES)
        self.register_buffer("scale", torch.tensor([0.5]), persistent=False)

    def forward(self, x, target):
        h = self.body(x).relu()
        with torch.no_grad():
            norm = h.square().mean(1, keepdim=True).sqrt() + 1
        with torch.autocast("cpu", enabled=False):
            penalty = (h / norm).square().mean() * self.scale[0]
        return F.cross_entropy(self.out(h), target, label_smoothing=0.1) + 0.1 * penalty


class Tied(nn.Module):
    """A small GPT: tied weights, causal attention with dropout, a dict."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.embedding, self.heads = nn.Embedding(WORDS, width), heads
        self.position = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return {"logits": self.head(self.norm3(x + self.mlp(self.norm2(x)))), "hidden": x}


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaLike(nn.Module):
    """RMS norm, rotary positions computed from the length, grouped queries, a gated MLP."""

    def __init__(self, width=32, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embedding, self.norm1, self.norm2, self.norm3 = (
            nn.Embedding(WORDS, width),
            RmsNorm(width),
            RmsNorm(width),
            RmsNorm(width),
        )
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(width, 64, bias=False),
            nn.Linear(width, 64, bias=False),
            nn.Linear(64, width, bias=False),
        )
        self.head = nn.Linear(width, WORDS, bias=False)
        self.register_buffer(
            "frequencies", 1.0 / 10000 ** (torch.arange(0, self.size, 2).float() / self.size), persistent=False
        )

    def rotate(self, x):
        with torch.autocast("cpu", enabled=False):
            angles = torch.arange(x.shape[2], device=x.device).float()[:, None] * self.frequencies[None]
            cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, ids):
        x = self.embedding(ids)
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in (self.q(h), self.k(h), self.v(h)))
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (self.rotate(k), v))
        attended = F.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return self.head(self.norm3(x + self.down(F.silu(self.gate(h)) * self.up(h))))


def googlenet():
    from torchvision.models.googlenet import GoogLeNet, GoogLeNetOutputs

    if (
        GoogLeNetOutputs not in torch.utils._pytree.SUPPORTED_SERIALIZED_TYPES
        or torch.utils._pytree.SUPPORTED_SERIALIZED_TYPES[GoogLeNetOutputs].serialized_type_name != "GoogLeNetOutputs"
    ):
        torch.utils._pytree._register_namedtuple(GoogLeNetOutputs, serialized_type_name="GoogLeNetOutputs")
    return GoogLeNet(MANY_CLASSES, init_weights=True)


def torchvision_model(make):
    import torchvision

    return make(torchvision.models)


def timm_model(make):
    import timm

    return make(timm.models)


def fcn():
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.resnet import BasicBlock, ResNet
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    return FCN(
        IntermediateLayerGetter(ResNet(BasicBlock, [1, 1, 1, 1]), {"layer4": "out", "layer3": "aux"}),
        FCNHead(512, CLASSES),
        FCNHead(256, CLASSES),
    )


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt(
        [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 1)], num_classes=CLASSES, stochastic_depth_prob=0.4
    )


def swin():
    from torchvision.models import SwinTransformer

    return SwinTransformer(
        [4, 4], 16, [2, 2], [2, 2], [2, 2], num_classes=CLASSES, dropout=0.1, stochastic_depth_prob=0.3
    )


def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    return EfficientNet(
        [MBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 3, 2, 8, 16, 2)],
        dropout=0.2,
        stochastic_depth_prob=0.4,
        num_classes=CLASSES,
    )


def transformers_model(make):
    import transformers

    transformers.logging.set_verbosity_error()
    return make(transformers)


def distilbert():
    return transformers_model(
        lambda t: t.DistilBertForSequenceClassification(
            t.DistilBertConfig(
                vocab_size=WORDS,
                max_position_embeddings=LENGTH,
                n_layers=2,
                n_heads=4,
                dim=32,
                hidden_dim=64,
                num_labels=CLASSES,
            )
        )
    )


def bert(cls):
    return transformers_model(
        lambda t: getattr(t, cls)(
            t.BertConfig(
                vocab_size=WORDS,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=LENGTH,
                num_labels=CLASSES,
            )
        )
    )


def gpt2():
    # transformers makes causal masks with torch.vmap(), which PyTorch exports but cannot save.
    from transformers.integrations.executorch import sdpa_mask_without_vmap
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa_without_vmap", sdpa_mask_without_vmap)
    ALL_ATTENTION_FUNCTIONS.register("sdpa_without_vmap", ALL_ATTENTION_FUNCTIONS["sdpa"])
    return transformers_model(
        lambda t: t.GPT2LMHeadModel(
            t.GPT2Config(
                vocab_size=WORDS,
                n_positions=LENGTH,
                n_embd=32,
                n_layer=2,
                n_head=4,
                use_cache=False,
                bos_token_id=0,
                eos_token_id=0,
                attn_implementation="sdpa_without_vmap",
            )
        )
    )


class T5Like(nn.Module):
    """transformers' T5 with the two texts it is trained with."""

    def __init__(self):
        super().__init__()
        self.t5 = transformers_model(
            lambda t: t.T5ForConditionalGeneration(
                t.T5Config(
                    vocab_size=WORDS,
                    d_model=32,
                    d_kv=8,
                    d_ff=64,
                    num_layers=1,
                    num_heads=4,
                    use_cache=False,
                    decoder_start_token_id=0,
                )
            )
        )

    def forward(self, text, decoder_text):
        return {
            "logits": self.t5(input_ids=text, decoder_input_ids=decoder_text, use_cache=False, return_dict=True).logits
        }


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: list  # names in the data
    target: str
    loss: object  # of the experiment file
    loss_of: Callable  # the same in PyTorch, from output and target
    keywords: Optional[list] = None  # forward() is called with these names instead of in order
    lr: float = 1e-3
    # Of AdamW. Batch norm leaves gradients that are all rounding (of a bias before it, of dead channels), and those of
    # several ranks are not rounded where one process rounds: with torch's 1e-8 this becomes whole steps.
    eps: float = 1e-8
    samples: int = 4  # of a rank's batch
    in_suite: bool = True


CE = F.cross_entropy
CLASS_LOGITS = {"kind": "cross_entropy", "output": "logits"}
WORD_LOGITS = {"kind": "cross_entropy", "output": "logits", "class_dimension": "last"}


def of_words(out, y):
    return CE(out["logits"].flatten(0, 1), y.flatten())


def vision(make, eps=1e-3, inputs=("picture",), **more):
    return Case(lambda: torchvision_model(make), list(inputs), "class", "cross_entropy", CE, eps=eps, **more)


def of_timm(make, **more):
    return Case(lambda: timm_model(make), ["picture"], "class", "cross_entropy", CE, **more)


CASES = {
    "mlp": Case(mlp, ["numbers"], "class", "cross_entropy", CE),
    "cnn": Case(cnn, ["picture"], "class", "cross_entropy", CE, eps=1e-3),
    "lstm": Case(
        lambda: Recurrent(nn.LSTM),
        ["text"],
        "class",
        {"kind": "cross_entropy", "output": "0"},
        lambda out, y: CE(out[0], y),
    ),
    "gru": Case(
        lambda: Recurrent(nn.GRU),
        ["text"],
        "class",
        {"kind": "cross_entropy", "output": "0"},
        lambda out, y: CE(out[0], y),
        in_suite=False,
    ),
    "two_towers": Case(
        TwoTowers,
        ["picture", "text"],
        "pair",
        "bce_with_logits",
        lambda out, y: F.binary_cross_entropy_with_logits(out, y.float()),
    ),
    "autoencoder": Case(AutoEncoder, ["numbers"], "numbers", "mse", F.mse_loss, in_suite=False),
    "own_loss": Case(OwnLoss, ["numbers", "class"], "class", "from_model", lambda out, y: out),
    "tied_gpt": Case(Tied, ["text"], "words", WORD_LOGITS, of_words),
    "llama_like": Case(
        LlamaLike,
        ["text"],
        "words",
        {"kind": "cross_entropy", "class_dimension": "last"},
        lambda out, y: CE(out.flatten(0, 1), y.flatten()),
    ),
    "googlenet": Case(
        googlenet,
        ["big_picture"],
        "class",
        {"kind": "cross_entropy", "output": "logits", "auxiliary": {"aux_logits2": 0.3, "aux_logits1": 0.3}},
        lambda out, y: CE(out.logits, y) + 0.3 * CE(out.aux_logits2, y) + 0.3 * CE(out.aux_logits1, y),
        eps=1e-3,
    ),
    "resnet18": vision(lambda m: m.resnet18(num_classes=MANY_CLASSES)),
    "mobilenet_v3": vision(lambda m: m.mobilenet_v3_small(num_classes=CLASSES), in_suite=False),
    "efficientnet": Case(efficientnet, ["picture"], "class", "cross_entropy", CE, eps=1e-3, in_suite=False),
    "densenet": vision(lambda m: m.DenseNet(8, (2, 2), 16, num_classes=CLASSES, drop_rate=0.1), in_suite=False),
    "fcn": Case(
        fcn,
        ["big_picture"],
        "big_pixel_classes",
        {"kind": "cross_entropy", "output": "out", "auxiliary": {"aux": 0.5}},
        lambda out, y: CE(out["out"], y) + 0.5 * CE(out["aux"], y),
        eps=1e-3,
        in_suite=False,
    ),
    "squeezenet": vision(lambda m: m.squeezenet1_1(num_classes=CLASSES), in_suite=False),
    "shufflenet": vision(lambda m: m.shufflenet_v2_x0_5(num_classes=CLASSES), inputs=["big_picture"], in_suite=False),
    "convnext": Case(convnext, ["picture"], "class", "cross_entropy", CE),
    "swin": Case(swin, ["picture"], "class", "cross_entropy", CE, in_suite=False),
    "vit": vision(
        lambda m: m.VisionTransformer(SIDE, 8, 2, 4, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=CLASSES),
        in_suite=False,
    ),
    "timm_vit": of_timm(
        lambda m: m.VisionTransformer(
            SIDE, 8, num_classes=CLASSES, embed_dim=32, depth=2, num_heads=4, drop_rate=0.1, drop_path_rate=0.3
        )
    ),
    "timm_resnet": of_timm(
        lambda m: m.ResNet(
            m.resnet.BasicBlock,
            (1, 1, 1, 1),
            num_classes=CLASSES,
            output_stride=8,
            stem_width=8,
            stem_type="deep",
            avg_down=True,
            channels=(16, 32, 48, 64),
            drop_rate=0.1,
            drop_path_rate=0.3,
        ),
        eps=1e-3,
    ),
    "timm_mixer": of_timm(
        lambda m: m.MlpMixer(
            CLASSES, img_size=SIDE, patch_size=8, num_blocks=2, embed_dim=32, drop_rate=0.1, drop_path_rate=0.3
        )
    ),
    # Rotary positions and gated layers.
    "timm_eva": of_timm(
        lambda m: m.Eva(
            SIDE,
            8,
            num_classes=CLASSES,
            embed_dim=32,
            depth=2,
            num_heads=4,
            swiglu_mlp=True,
            use_rot_pos_emb=True,
            drop_path_rate=0.3,
        )
    ),
    "distilbert": Case(
        distilbert,
        ["text", "mask"],
        "class",
        CLASS_LOGITS,
        lambda out, y: CE(out["logits"], y),
        keywords=["input_ids", "attention_mask"],
        in_suite=False,
    ),
    "bert": Case(
        lambda: bert("BertForSequenceClassification"),
        ["input_ids", "attention_mask"],
        "class",
        CLASS_LOGITS,
        lambda out, y: CE(out["logits"], y),
        keywords=["attention_mask", "input_ids"],
    ),
    "bert_mlm": Case(
        lambda: bert("BertForMaskedLM"),
        ["text", "mask"],
        "words",
        WORD_LOGITS,
        of_words,
        keywords=["input_ids", "attention_mask"],
        in_suite=False,
    ),
    "gpt2": Case(gpt2, ["text"], "words", WORD_LOGITS, of_words, keywords=["input_ids"], in_suite=False),
    "t5": Case(T5Like, ["text", "decoder_text"], "words", WORD_LOGITS, of_words, in_suite=False),
}


def make_data(case, count, seed=2):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(count, *shape, generator=generator)

    def below(most, *shape):
        return torch.randint(0, most, (count, *shape), generator=generator)

    lengths = 3 + below(LENGTH - 2)
    makers = {
        "numbers": lambda: normal(12),
        "picture": lambda: normal(3, SIDE, SIDE),
        "big_picture": lambda: normal(3, BIG_SIDE, BIG_SIDE),
        "text": lambda: below(WORDS, LENGTH),
        "decoder_text": lambda: below(WORDS, LENGTH),
        "mask": lambda: (torch.arange(LENGTH) < lengths[:, None]).long(),
        "class": lambda: below(CLASSES),
        "pair": lambda: below(2),
        "words": lambda: below(WORDS, LENGTH),
        "big_pixel_classes": lambda: below(CLASSES, BIG_SIDE, BIG_SIDE),
    }
    makers["input_ids"], makers["attention_mask"] = makers["text"], makers["mask"]
    return {name: makers[name]() for name in dict.fromkeys((*case.inputs, case.target))}


def call(case, model, data, rows):
    tensors = [data[name][rows] for name in case.inputs]
    if case.keywords is None:
        return model(*tensors)
    # By name where the data has the model's names, otherwise one after another.
    names = case.inputs if set(case.keywords) == set(case.inputs) else case.keywords
    return model(**dict(zip(names, tensors)))


def export(case, model, data, path, training=True, dynamic=True):
    """As docs/exporting.md says: any number of samples from 1 on."""
    model.train(training)
    tensors = [data[name][: case.samples] for name in case.inputs]
    batch = {0: torch.export.Dim.AUTO}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if case.keywords is None:
        shapes = tuple(batch if dynamic else None for _ in tensors)
        program = torch.export.export(model, tuple(tensors), dynamic_shapes=shapes)
    else:
        names = case.inputs if set(case.keywords) == set(case.inputs) else case.keywords
        by_name = dict(zip(names, tensors))
        program = torch.export.export(
            model,
            (),
            {name: by_name[name] for name in case.keywords},
            dynamic_shapes={name: batch if dynamic else None for name in case.keywords},
        )
    model.load_state_dict(before)
    torch.export.save(program, str(path))
    return program
