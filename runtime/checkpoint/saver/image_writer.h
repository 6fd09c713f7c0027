// Writes files whose bytes are in a SnapshotMemory, and looks for weights in them that are not finite.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/partial_folder.h"

namespace dtrain::checkpoints {

// Reserves space for all files first. Then several threads write pieces from the memory to the disk, without the page
// cache if the file system supports that, and compute their checksums. They run at idle priority for three seconds, or
// until snapshot `number` is urgent, so that a machine with busy processors does not delay them for ever. `on_read` is
// called when the memory is no longer needed; then the files are synchronised. Returns their entries for the manifest.
// SystemError names file and offset.
std::vector<ManifestFile> write_images(const OpenFolder& folder, const std::vector<FileImage>& images,
                                       const SnapshotMemory& memory, std::uint64_t number,
                                       const std::function<void()>& on_read);

// Finds weights that are not finite in the bytes of a checkpoint's file.
class FiniteCheck {
 public:
  // `data`: a whole safetensors file, which outlives the check. Nothing is checked in other files, and in files without
  // weights (FileImage::weights).
  FiniteCheck(const FileImage& image, const std::byte* data);

  // Checks the values that begin in these bytes of the file. Any thread; several at a time.
  void look(std::size_t offset, std::size_t size);
  // Returns the name of the first tensor with a value that is not finite; empty: none found.
  std::string found() const;

 private:
  struct Tensor {
    std::string name;
    std::size_t begin = 0, end = 0;  // from the file's begin
    std::size_t width = 0;           // bytes of a value
    std::uint64_t infinity = 0;      // bits of infinity
    bool may_be_infinite = false;
  };
  void read_header(const FileImage& image);
  static bool has_one(const Tensor& tensor, const std::byte* values, std::size_t count);

  const std::byte* data_;
  std::vector<Tensor> tensors_;  // in the file's order
  std::vector<std::atomic<bool>> found_;
};

}  // namespace dtrain::checkpoints
