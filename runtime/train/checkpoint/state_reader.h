// Puts the state of a checkpoint back into training. Training thread.
//
// A run with as many ranks as the checkpoint's gives every rank its own state again. With another number of ranks, a
// rank's buffers are those of rank 0; the residuals of compression, and the own state of ranks that step by themselves,
// are the mean over the checkpoint's ranks; sums of metrics go to rank 0. Weights are then equal up to rounding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/base/json.h"
#include "dtrain/data/safetensors.h"
#include "state_visitor.h"

namespace dtrain::train {

class StateReader {
 public:
  // Opens a checkpoint, for a rank of a run of `world_size`. `one_state`: all ranks of this run have the same
  // parameters and the same optimizer state; if the checkpoint's ranks had their own (local steps), each gets the mean
  // of all. DataError, SystemError.
  StateReader(const std::filesystem::path& checkpoint, int rank, int world_size, bool one_state);
  ~StateReader();

  // `visit` calls the visitor with all of the state. ConfigError lists the entries that the checkpoint does not have,
  // or has in another shape or type. Entries of the way in which gradients are exchanged (compression, local steps) and
  // of the scale of a loss may be missing: they begin anew, and missing() lists them.
  void restore(const std::function<void(StateVisitor&)>& visit);
  const std::vector<std::string>& missing() const { return missing_; }
  const Json& about() const { return about_; }  // manifest.json's "about"
  bool other_world_size() const { return world_size_before_ != world_size_; }

 private:
  class Restorer;
  struct File;
  File* file(const std::string& name);
  // Returns the rank's file, with its values.
  File& own(int rank);
  std::optional<at::Tensor> read(const std::string& file, const std::string& name);

  const std::filesystem::path folder_;
  const int rank_, world_size_;
  const bool one_state_;
  int world_size_before_ = 1;
  Json about_;
  std::map<std::string, std::unique_ptr<File>> files_;
  std::vector<std::string> missing_;
};

}  // namespace dtrain::train
