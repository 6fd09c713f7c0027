// Prepares a program that was exported in train mode for evaluation: operators with two modes get the other flag, and
// counters do not advance. Evaluation is refused if an operator without such a flag may belong to training alone.
#pragma once

#include <string>
#include <vector>

#include "exported/program.h"

namespace dtrain::exported {

// Sets in_evaluation, skipped_in_evaluation and why_no_evaluation, and marks the tensors that the program changes.
void prepare_evaluation(Program& program);

// Returns the names of the operators that have a flag for training, each once: "batch_norm", "dropout".
std::vector<std::string> modal_operators(const Program& program);
// True if no such operator trains: the program was exported in evaluation mode.
bool is_in_evaluation_mode(const Program& program);
// If some operators train, returns the modules of the frozen ones, which do not: "layer1.0.bn2 (BatchNorm2d)".
std::vector<std::string> modules_in_evaluation(const Program& program);

}  // namespace dtrain::exported
