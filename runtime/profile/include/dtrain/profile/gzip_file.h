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

// Writes a temporary file beside `path`, which finish() renames to `path`, so readers never see half a file. Without
// finish() the destructor removes it.
class GzipWriter {
 public:
  explicit GzipWriter(std::filesystem::path path);
  ~GzipWriter();
  GzipWriter& operator=(GzipWriter&&) = delete;
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

// The whole content; plain files can be read, too. DataError if it has more than `limit_bytes`.
std::string read_gzip(const std::filesystem::path& path, std::size_t limit_bytes = 4ull << 30);

// The first `bytes` of the content, or all of it if it is shorter.
std::string read_gzip_beginning(const std::filesystem::path& path, std::size_t bytes);

}  // namespace dtrain::profile
