// The file of `dtrain predict`, on rank 0: rows of outputs in one of three formats, written as they come, so that the
// outputs of a data set need not fit into memory. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/base/file.h"

namespace dtrain::train {

class PredictionFile {
 public:
  // Writes beside `path`, which finish() replaces. The name's end is the format: .npy (NumPy, version 1.0),
  // .safetensors (one tensor, `outputs`), or .jsonl (a line {"index", "output"} for each row). SystemError if the file
  // cannot be made.
  explicit PredictionFile(std::filesystem::path path);
  ~PredictionFile();  // without finish(): nothing is left
  PredictionFile& operator=(PredictionFile&&) = delete;

  // Appends rows, in host memory: a tensor [rows, ...]. Error if their type or the other dimensions differ from those
  // of earlier rows, or if the format has no such type. .npy has no bfloat16: such values are written as float32.
  void add(const at::Tensor& rows);
  // Completes the file; Error if there were no rows.
  void finish();

  std::vector<std::int64_t> shape() const;  // of all rows so far

 private:
  enum class Format { kNumpy, kSafetensors, kLines };
  void write(const char* bytes, std::size_t count);
  std::string header() const;

  const std::filesystem::path path_;
  const std::filesystem::path partial_;
  const Format format_;
  UniqueFd file_;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> row_;  // the shape of a row
  at::ScalarType type_ = at::kFloat;
  bool finished_ = false;
};

}  // namespace dtrain::train
