// The keys that say what is trained: a program or a model, its hyperparameters and data. They depend on each other, so
// their types are written by hand (runtime/config/experiment/).
#pragma once

#include <memory>

#include "dtrain/config/keys.h"

namespace dtrain::config {

struct Experiment;

inline constexpr Key kModel{
    .name = "model",
    .text =
        "A file of torch.export (.pt2) or TorchScript (.pt) to train instead of a program, relative to this file's "
        "folder; or a pair of files, one to train and one to validate with. Needs loss, optimizer and data.",
    .more = "[More](#a-torchscript-model-without-writing-code).",
    .examples = R"(["cnn.pt2", {"train": "cnn_train.pt2", "eval": "cnn_eval.pt2"}])",
    .default_text = "none"};
inline constexpr Key kLoss{.name = "loss",
                           .text =
                               "The loss of a model experiment, averaged over the samples of the batch. cross_entropy: "
                               "targets are class numbers, outputs are logits.",
                           .more = "[Losses](#losses-and-outputs).",
                           .default_text = "required"};
inline constexpr Key kMetrics{
    .name = "metrics",
    .text =
        "The metrics of a model experiment besides the loss. K of top_K_accuracy is a number from 2 on. All but "
        "accuracy are computed in validation alone. null: accuracy, if the loss has it.",
    .more = "[Metrics](#metrics).",
    .examples = R"([["accuracy", "top_5_accuracy", "f1"]])",
    .default_text = "null"};
inline constexpr Key kOptimizer{
    .name = "optimizer",
    .text = "The optimizer. Names, meanings and defaults of its keys are those of torch.optim.",
    .default_text = "required"};
inline constexpr Key kEntrypoint{
    .name = "entrypoint",
    .text =
        "The program that every rank runs, and its arguments: a list, or text that is "
        "split into words as a shell does it. A name without a slash is looked up beside "
        "dtrain, then in PATH; other paths are relative to this file's folder. A Python file "
        "(train.py), or a dtrain.Trial in one (train.py:MyTrial), is relative to this "
        "file's folder, too.",
    .more = "[More](python.md#running).",
    .examples = R"(["./my_trial --verbose", ["./my_trial", "--name", "two words"], "train.py:MyTrial"])",
    .default_text = "required, or `model`"};
inline constexpr Key kHyperparameters{
    .name = "hyperparameters",
    .text = "global_batch_size, and any other values for the trial. {type: const, val: x} means x.",
    .more =
        "After the first batch, a warning names the keys that the trial has not read; with `model`, any key other than "
        "`global_batch_size` is an error."};
inline constexpr Key kGlobalBatchSize{
    .name = "global_batch_size",
    .text = "The records that all slots together train in one batch; at least resources.slots_per_trial.",
    .examples = R"([64, {"type": "const", "val": 64}])",
    .required = "a whole number of at least resources.slots_per_trial"};
inline constexpr Key kData{.name = "data",
                           .text = "With an entrypoint: any values for the trial. With a model: where its samples are.",
                           .more =
                               "A warning names the keys that the trial has not read, as for `hyperparameters`. For a "
                               "`model`: [these keys](#a-torchscript-model-without-writing-code).",
                           .default_text = "`{}`"};

std::unique_ptr<KeyType> model_form(Experiment& experiment);
std::unique_ptr<KeyType> loss_form(Experiment& experiment);
std::unique_ptr<KeyType> metrics_form(Experiment& experiment);
std::unique_ptr<KeyType> optimizer_form(Experiment& experiment);
std::unique_ptr<KeyType> data_form(Experiment& experiment);
std::unique_ptr<KeyType> entrypoint_form(Experiment& experiment);
std::unique_ptr<KeyType> hyperparameters_form(Experiment& experiment);
std::unique_ptr<KeyType> environment_variables_form(Experiment& experiment);

}  // namespace dtrain::config
