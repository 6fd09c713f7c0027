// How a program that was exported in train mode computes in evaluation: operators that know the two modes get the other
// flag, counters stand still. Where an operator may belong to training alone and no flag says so, evaluation is
// refused.
#pragma once

#include <string>
#include <vector>

#include "exported/program.h"

namespace dtrain::exported {

// Sets in_evaluation, skipped_in_evaluation and why_no_evaluation, and marks the tensors that the program changes.
void prepare_evaluation(Program& program);

// "batch_norm", "dropout": what has a flag that says training. Each once.
std::vector<std::string> modal_operators(const Program& program);
// Whether none of them trains: the program was exported in evaluation mode.
bool is_in_evaluation_mode(const Program& program);
// Where some train, those that do not, by their modules: "layer1.0.bn2 (BatchNorm2d)". They were frozen.
std::vector<std::string> modules_in_evaluation(const Program& program);

}  // namespace dtrain::exported
