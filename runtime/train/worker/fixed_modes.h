// Finds what a TorchScript does in training mode whatever mode it is in: torch.jit.trace() writes the mode that it saw
// into the graph as a constant, where torch.jit.script() asks `self.training`.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// "batch_norm", "dropout": the operators of forward() whose argument `training` is the constant true, each once.
std::vector<std::string> always_training(const torch::jit::Module& script);

}  // namespace dtrain::worker
