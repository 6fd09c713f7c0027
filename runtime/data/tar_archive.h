// Members of a tar archive: POSIX ustar and pax, and what GNU tar adds (long names, large sizes). Archives that are
// compressed as a whole are refused, since nothing can be read out of their middle. Private to data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data_file.h"

namespace dtrain::data {

struct TarMember {
  std::string name;
  std::uint64_t header = 0;  // offset of the member's (first) header
  std::uint64_t offset = 0;  // of the content
  std::uint64_t size = 0;    // of the content
};

// Goes through an archive from front to back and reads headers alone. DataError names the file and the offset: for an
// invalid header, an incomplete member, and a missing end mark. One thread at a time.
class TarReader {
 public:
  // Begins at the header at `offset`. The file must outlive the reader.
  explicit TarReader(const DataFile& file, std::uint64_t offset = 0) : file_(file), next_(offset) {}
  // Returns the next regular file; empty at the end of the archive.
  std::optional<TarMember> next();
  // Returns the content of a short member.
  std::string content(const TarMember& member) const;

 private:
  struct Header;
  Header read_header(std::uint64_t offset) const;
  std::string text(std::uint64_t offset, std::uint64_t size) const;

  const DataFile& file_;
  std::uint64_t next_;  // offset of the next header
};

// Writes an archive in the form of pax, with the times and owners of every member zero, so that the same content gives
// the same bytes. Errors are SystemError. One thread at a time.
class TarWriter {
 public:
  explicit TarWriter(std::filesystem::path path);  // the file must not exist
  void add(const std::string& name, std::string_view content);
  // Writes the end mark and syncs the file. Without it the archive has no end mark, and readers refuse it.
  void close();
  std::uint64_t bytes() const { return bytes_; }

 private:
  void write(std::string_view content);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string buffer_;
  std::uint64_t bytes_ = 0;
};

}  // namespace dtrain::data
