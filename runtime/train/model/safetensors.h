// Tensors as safetensors files. data/safetensors.h describes the format and reads it; here it is written, and read into
// tensors. Python's `safetensors` reads what this writes, and the other way round.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/data/safetensors.h"

namespace dtrain::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Atomic: the file is the old one or the whole new one. `metadata` goes into "__metadata__". SystemError, or an Error
// for a dtype the format does not know.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Whether a file can hold tensors of this type.
bool can_be_saved(at::ScalarType type);
// "F32": the format's name of a type. Error for a type the format does not know.
const char* safetensors_name(at::ScalarType type);
// The other way round. DataError for a name that is not known.
at::ScalarType scalar_type_of(const std::string& name);
// A tensor as data::safetensors_header() needs it. Error for a type the format does not know.
data::SafetensorsEntry safetensors_entry(const std::string& name, const at::Tensor& tensor);
// One tensor of an open file. DataError.
at::Tensor read_tensor(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);

// DataError names the file, the offset, and what is wrong there (a length past the end, overlapping or misplaced
// tensors, a type that is not supported, …).
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace dtrain::train
