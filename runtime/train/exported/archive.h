// The zip archive that torch.export.save() writes (`.pt2`): named records. Sizes are checked against the file, so that
// no record makes the reader allocate more bytes than the file has. One thread at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace dtrain::exported {

// Returns the first line of an exception's message; of libtorch's without its C++ stack.
std::string plain_message(const std::exception& error);

// Returns true if the file is a zip archive with the records of an exported program, even if this version cannot read
// the program. Returns false if the file is no archive. ConfigError if the file cannot be read.
bool is_exported_program(const std::filesystem::path& file);

class Archive {
 public:
  // ConfigError: the file cannot be read, is damaged, is not of torch.export, or was written by an older PyTorch.
  explicit Archive(std::filesystem::path file);
  ~Archive();
  Archive& operator=(Archive&&) = delete;

  const std::filesystem::path& file() const { return file_; }
  // The program's name in the archive: "model". An archive with several programs is a ConfigError.
  const std::string& program() const { return program_; }
  const std::vector<std::string>& records() const { return records_; }
  bool has(const std::string& record) const;
  // ConfigError if there is no such record, or if it is longer than `limit` bytes.
  std::string text(const std::string& record, std::size_t limit) const;
  // Returns the record as a uint8 tensor of one dimension that owns its memory. ConfigError if there is no such record.
  at::Tensor bytes(const std::string& record) const;

  // Throws a ConfigError that begins with the file. The default remedy is to export the model again.
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const;

 private:
  std::size_t size_of(const std::string& record) const;
  // Calls `read` with the record's size. Its exceptions mean that the record is damaged.
  template <typename Read>
  auto read(const std::string& record, Read read) const;

  std::filesystem::path file_;
  std::uint64_t file_bytes_ = 0;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::vector<std::string> records_;
  std::string program_;
};

}  // namespace dtrain::exported
