// Finds the operators of a TorchScript that are in training mode in both modes: torch.jit.trace() writes the mode at
// the time of tracing into the graph as a constant, while torch.jit.script() reads `self.training`.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// Returns the operators of forward() whose training flag is the constant true, each once: "batch_norm", "dropout".
std::vector<std::string> always_training(const torch::jit::Module& script);

}  // namespace dtrain::worker
