// Reads a model's weights from files at the start of a run, and writes them at its end. The files are safetensors,
// which Python's `safetensors` reads and writes, too; data/safetensors.h describes the format and reads headers.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "dtrain/config/checkpoints.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::train {

// Writes parameters and buffers under their names (a tied one under each of its names, so that load_state_dict()
// accepts the file). Leaves out the tensors of LeavesTensorsOut. Makes the file's folder.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& path);

// The result of load_weights(), for the log.
struct LoadedWeights {
  std::string from;                   // where the weights were found
  std::vector<std::string> warnings;  // checkpoints that were passed over; with strict: false all misfits
  std::filesystem::path checkpoint;   // the checkpoint whose weights they are; empty: none
};

// Copies the tensors that `weights` names into the model, which may be on any device. A tied tensor may be in the file
// under any of its names. ConfigError: the files cannot be used, or do not fit the model (it lists every tensor that is
// missing, left over, or of another shape or type); DataError: a damaged file. `what` begins the errors about weights
// that do not fit.
LoadedWeights load_weights(torch::nn::Module& model, const config::InitialWeights& weights,
                           const std::string& what = "initial_weights");

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Writes a file atomically: it is the old one or the whole new one. `metadata` goes into "__metadata__". SystemError,
// or an Error for a dtype that the format does not know.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// True if a file can hold tensors of this type.
bool can_be_saved(at::ScalarType type);
// Returns the format's name of a type, such as "F32". Error for a type that the format does not know.
const char* safetensors_name(at::ScalarType type);
// Returns the type of a name. DataError for a name that is not known.
at::ScalarType scalar_type_of(const std::string& name);
// Returns the entry of a tensor for data::safetensors_header(). Error for a type that the format does not know.
data::SafetensorsEntry safetensors_entry(const std::string& name, const at::Tensor& tensor);
// Reads one tensor of an open file. DataError.
at::Tensor read_tensor(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);

// Reads all tensors. DataError names the file, the offset, and the fault there (a length past the end, overlapping or
// misplaced tensors, a type that is not supported, …).
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace dtrain::train
