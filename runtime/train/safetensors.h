// The safetensors format (https://github.com/huggingface/safetensors): a little-endian u64 with the length of a JSON
// header, the header, the tensors' bytes. Python's `safetensors` reads what this writes, and the other way round.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace dtrain::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Atomic: the file is the old one or the whole new one. `metadata` goes into "__metadata__". SystemError, or an Error
// for a dtype the format does not know.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// DataError names the file and what is wrong with it (a length past the end, overlapping or misplaced tensors, …).
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace dtrain::train
