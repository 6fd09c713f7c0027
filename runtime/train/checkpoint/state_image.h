// The training state of this rank as the bytes of a checkpoint's files (checkpoint/checkpoint.h). Training thread.
//
// The state that all ranks have alike is in model.safetensors (the model's weights) and optimizer.safetensors, and the
// ranks of host 0 divide the copying among themselves. A rank's own state is in its file: tensors, and all numbers and
// texts as JSON, the bytes of a tensor called "values". If ranks step by themselves (local steps), parameters and
// optimizer state are each rank's own: rank 0's are in the two shared files, and every other rank's in its own file.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include "dtrain/base/json.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/train/trial_state.h"
#include "state_visitor.h"

namespace dtrain::train {

// Copies tensors from a device into memory of the host. Neither the device's other work nor the host waits for the
// copies: they go into page-locked memory in the order of the device's current stream, and from there to their places
// once they have arrived. Training thread.
class DeviceCopies {
 public:
  // Adds a value, whose bytes go to `to`.
  void add(const at::Tensor& value, std::byte* to);
  // Called after the last add(): hands the copies to the device, which copies the values as they are by then.
  void hand_over();
  // Moves bytes that have arrived to their places. Returns true if all are there; without copies: true.
  bool complete();
  // Completes the copies. Waits for the device.
  void complete_now();
  // The time that the host has taken to move the bytes of the last copies to their places.
  double seconds() const { return seconds_; }

 private:
  void put_in_place();

  struct Copy {
    at::Tensor value;
    std::byte* to = nullptr;
    std::size_t place = 0;  // offset in locked_
  };
  std::vector<Copy> copies_;
  at::Tensor locked_;  // page-locked memory for all copies, which stays for the next checkpoint
  double seconds_ = 0;
  std::optional<c10::Event> all_arrived_;
};

// The names of the parts of the state, with which StateVisitor's paths begin.
namespace state_path {
inline constexpr std::string_view kParameters = "step/parameters/";
inline constexpr std::string_view kFrozen = "step/model/frozen/";
inline constexpr std::string_view kBuffers = checkpoints::kBuffersOfRank;
inline constexpr std::string_view kOptimizer = "step/optimizer/";
inline constexpr std::string_view kMetricSums = "metrics/sums";
inline constexpr std::string_view kTrial = "trial/";
inline constexpr std::string_view kLogical = "logical/";  // of each logical rank, with virtual ranks
inline constexpr std::string_view kCallbacks = "callbacks/";
}  // namespace state_path

// The beginning of names of parameters in optimizer.safetensors: those that are no part of the model's weights.
inline constexpr std::string_view kLeftOutParameter = "parameters/";

// One file: its header, and the place of each tensor's bytes behind the header.
class FileImage {
 public:
  enum class Writers {
    kAll,    // the ranks divide its bytes
    kFirst,  // rank 0 alone: ranks have values of their own
    kNone    // write_data() leaves it out
  };
  void add(std::string name, at::Tensor value, Writers writers = Writers::kAll);
  void add_metadata(const std::string& key, std::string value) { metadata_[key] = std::move(value); }
  // To be called after the last add().
  void lay_out();

  std::size_t bytes() const { return header_.size() + data_bytes_; }
  std::size_t data_bytes() const { return data_bytes_; }
  void for_each(const std::function<void(const std::string& name, const at::Tensor& value)>& call) const;
  // Returns the offset of each tensor's bytes in the file.
  std::map<std::string, std::size_t> offsets() const;
  void write_header(std::byte* to) const;
  // Returns the whole file.
  std::vector<std::byte> file() const;
  // Copies the tensors' bytes from `first` up to `last` (counted from the first tensor's begin) to their places in the
  // file that begins at `to`, and those of Writers::kFirst if `is_first`. A tensor that is not contiguous, or on a
  // device, is copied whole if its first byte is in that range; from a device by `from_device`.
  void write_data(std::byte* to, std::size_t first, std::size_t last, bool is_first, DeviceCopies& from_device) const;

 private:
  struct Entry {
    std::string name;
    at::Tensor value;
    std::size_t offset = 0;  // from the first tensor's begin
    Writers writers = Writers::kAll;
  };
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  std::string header_;
  std::size_t data_bytes_ = 0;
};

// Special properties of tensors of the model.
struct TensorNames {
  std::map<std::string, std::string> tied;  // further names of parameters: "tied name" -> name
  std::set<std::string> left_out;           // tensors that are no part of its weights
};

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class StateImage {
 public:
  struct Options {
    int rank = 0;
    bool shared = true;      // all ranks hold the same parameters and optimizer state
    bool later = false;      // parameters and optimizer state are copied by their ranges
    bool divided = false;    // ranks hold optimizer state of their own parts alone, which is written elsewhere
    bool own_alone = false;  // what is visited is the rank's own: own() and values() alone
    TensorNames names;
  };
  // `visit` calls the visitor with all of the state. The image refers to tensors and does not copy them: they must not
  // change before the image has been written.
  StateImage(const Options& options, const std::function<void(StateVisitor&)>& visit);

  const FileImage& model() const { return model_; }
  const FileImage& optimizer() const { return optimizer_; }
  const FileImage& own() const { return own_; }   // file of this rank
  const Json& values() const { return values_; }  // numbers and texts by their paths
  // The tensors of model() that training does not update.
  const std::vector<std::string>& fixed() const { return fixed_; }

 private:
  class Collector;
  FileImage model_, optimizer_, own_;
  Json values_ = Json::object();
  std::vector<std::string> fixed_;
};

// The saved state of a trial or a callback, as entries of the training state. Training thread.
class TrialStateEntries {
 public:
  using Save = std::function<TrialState()>;
  using Load = std::function<void(const TrialState&)>;
  // `save` and `load`: save_state() and load_state() of the object that has the state.
  TrialStateEntries(Save save, Load load) : save_(std::move(save)), load_(std::move(load)) {}
  void visit(StateVisitor& visitor);

 private:
  const Save save_;
  const Load load_;
};

}  // namespace dtrain::train
