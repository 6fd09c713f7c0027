// The buffers of a model (running statistics of batch norms), of which each logical rank of this rank has its own.
// Training thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "dtrain/rank/logical_ranks.h"
#include "state_visitor.h"

namespace dtrain::train {

class LogicalBuffers {
 public:
  // Every logical rank begins with the model's buffers. The model outlives this object.
  LogicalBuffers(const torch::nn::Module& model, const rank::LogicalRanks& ranks);

  // Makes the model's buffers those of the logical rank with this index on this rank. Error if the model has changed
  // the form of a buffer.
  void load(std::size_t index);
  // Makes the buffers of that logical rank the model's.
  void store(std::size_t index);
  // Gives every logical rank of this rank the model's buffers.
  void store_for_all();
  // Visits the buffers of that logical rank.
  void visit(std::size_t index, StateVisitor& visitor);

 private:
  struct Buffer {
    std::string name;
    at::Tensor value;
  };
  std::vector<Buffer> buffers_of_model() const;

  const torch::nn::Module& model_;
  std::vector<std::vector<Buffer>> of_ranks_;  // empty with one logical rank: the model has its buffers
};

}  // namespace dtrain::train
