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
        "A TorchScript file to train instead of a program, relative to this file's folder. Needs loss, optimizer and "
        "data.",
    .more = "[More](#a-torchscript-model-without-writing-code).",
    .examples = R"(["cnn.pt"])",
    .default_text = "none"};
inline constexpr Key kLoss{
    .name = "loss",
    .text =
        "Of a model experiment: cross_entropy (targets are numbers of classes, outputs logits) or mse. Averaged over "
        "the samples of the batch.",
    .default_text = "required"};
inline constexpr Key kOptimizer{
    .name = "optimizer", .text = "Names, meanings and defaults are those of torch.optim.", .default_text = "required"};
inline constexpr Key kEntrypoint{
    .name = "entrypoint",
    .text =
        "The program to start on every rank, and its arguments: text, cut into words as a shell does it, or a list. A "
        "name without a slash is looked up beside dtrain, then in PATH; other paths are relative to this file's "
        "folder.",
    .examples = R"(["./my_trial --verbose", ["./my_trial", "--name", "two words"]])",
    .default_text = "required, or `model`"};
inline constexpr Key kHyperparameters{
    .name = "hyperparameters",
    .text = "global_batch_size, and anything else the trial wants. {type: const, val: x} is x.",
    .more =
        "Keys that the trial has not read when its first batch ends are named in a warning; with `model` any other "
        "key than `global_batch_size` is an error."};
inline constexpr Key kGlobalBatchSize{
    .name = "global_batch_size",
    .text = "Records of all slots together in a step; at least resources.slots_per_trial.",
    .examples = R"([64, {"type": "const", "val": 64}])",
    .required = "a whole number of at least resources.slots_per_trial"};
inline constexpr Key kData{
    .name = "data",
    .text = "With an entrypoint: anything the trial wants. With a model: where its samples are.",
    .more =
        "What the trial has not read of it is named in a warning, as with `hyperparameters`. Of a `model`: "
        "[its keys](#a-torchscript-model-without-writing-code).",
    .default_text = "`{}`"};

std::unique_ptr<KeyType> model_form(Experiment& experiment);
std::unique_ptr<KeyType> loss_form(Experiment& experiment);
std::unique_ptr<KeyType> optimizer_form(Experiment& experiment);
std::unique_ptr<KeyType> data_form(Experiment& experiment);
std::unique_ptr<KeyType> entrypoint_form(Experiment& experiment);
std::unique_ptr<KeyType> hyperparameters_form(Experiment& experiment);
std::unique_ptr<KeyType> environment_variables_form(Experiment& experiment);

}  // namespace dtrain::config
