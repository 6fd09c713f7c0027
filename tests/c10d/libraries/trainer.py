"""transformers' Trainer: trains, evaluates, saves, and goes on from what it has saved: trainer.py LINE OUT gpt2|bert."""
import outcome
import torch
import transformers

transformers.logging.set_verbosity_error()
STEPS, KEPT = 8, 4
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


class Sequences(torch.utils.data.Dataset):
    """Multiples of a number, modulo the vocabulary; for BERT, whether the number is odd."""

    def __init__(self, classes: bool) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict:
        tokens = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": tokens, "labels": torch.tensor(index % 2) if self.classes else tokens}


def model() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if outcome.ARGUMENTS[0] == "bert":
        config = transformers.BertConfig(intermediate_size=64, max_position_embeddings=32, **SIZES)
        return transformers.BertForSequenceClassification(config)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32))


def trainer(steps: int) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(outcome.OUT / "trained"), use_cpu=True, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=STEPS,
        logging_steps=1, eval_strategy="steps", eval_steps=KEPT, save_steps=KEPT, report_to=[], disable_tqdm=True, seed=7,
        ddp_find_unused_parameters=False)
    data = Sequences(outcome.ARGUMENTS[0] == "bert")
    made = transformers.Trainer(model(), arguments, train_dataset=data, eval_dataset=data)
    made.add_callback(Stop(steps))
    return made


class Stop(transformers.TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps


def history(made: transformers.Trainer) -> list[float]:
    return [entry[name] for entry in made.state.log_history for name in ("loss", "eval_loss", "grad_norm") if name in entry]


outcome.make_group()
whole = trainer(STEPS)
whole.train()
half = trainer(KEPT)
half.train()
resumed = trainer(STEPS)
resumed.train(resume_from_checkpoint=str(outcome.OUT / "trained" / f"checkpoint-{KEPT}"))
assert outcome.checksum(resumed.model) == outcome.checksum(whole.model), "the resumed training ends elsewhere"
outcome.tell(2 * STEPS, losses=history(whole), resumed=history(resumed), weights=outcome.checksum(whole.model),
             evaluated=whole.evaluate()["eval_loss"])
