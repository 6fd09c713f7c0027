// Looks for weights that are not finite among the bytes that become a checkpoint's file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {

class FiniteCheck {
 public:
  // `data`: the whole of a safetensors file. It outlives the check. A file that is none, or holds no weights
  // (FileImage::weights), has nothing to look at.
  FiniteCheck(const FileImage& image, const std::byte* data);

  // Looks at the values that begin in these bytes of the file. Any thread; several at a time.
  void look(std::size_t offset, std::size_t size);
  // The name of the first tensor in which there was such a value; empty: there was none.
  std::string found() const;

 private:
  struct Tensor {
    std::string name;
    std::size_t begin = 0, end = 0;  // from the file's begin
    std::size_t width = 0;           // bytes of a value
    std::uint64_t infinity = 0;      // its bits
    bool may_be_infinite = false;
  };
  void read_header(const FileImage& image);
  static bool has_one(const Tensor& tensor, const std::byte* values, std::size_t count);

  const std::byte* data_;
  std::vector<Tensor> tensors_;  // in the file's order
  std::vector<std::atomic<bool>> found_;
};

}  // namespace dtrain::checkpoints
