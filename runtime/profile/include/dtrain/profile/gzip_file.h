// Gzip files, written and read in pieces. Errors are SystemError or DataError naming the path. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct gzFile_s;  // zlib's

namespace dtrain::profile {

// Writes beside `path` and renames over it in finish(): readers never see half a file. Destroyed before, it leaves
// nothing.
class GzipWriter {
 public:
  explicit GzipWriter(std::filesystem::path path);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;
  void write(std::string_view text);
  // Returns the size of the file.
  std::uintmax_t finish();

 private:
  [[noreturn]] void fail() const;
  struct Close {
    void operator()(gzFile_s* file) const;
  };
  std::filesystem::path path_, part_;
  std::unique_ptr<gzFile_s, Close> file_;
};

// The whole content, of a plain file too. One that grows beyond `limit_bytes` is a DataError.
std::string read_gzip(const std::filesystem::path& path, std::size_t limit_bytes = 4ull << 30);

// Its first `bytes` (or all, where it has less).
std::string read_gzip_beginning(const std::filesystem::path& path, std::size_t bytes);

}  // namespace dtrain::profile
