// Parses one line of a dump at a time and passes it to a handler. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "dtrain/analysis/dump_reader.h"

namespace dtrain::analysis {

inline constexpr int kNewestSchema = 1;  // of docs/profile-format.md

enum class LineKind {
  kUnderstood,
  kUnknown,     // of a later version
  kUnreadable,  // no record
  kNewerSchema  // a header whose dump this version must not read
};

class DumpLineReader {
 public:
  DumpLineReader();
  ~DumpLineReader();
  DumpLineReader(const DumpLineReader&) = delete;
  DumpLineReader& operator=(const DumpLineReader&) = delete;

  // Reads a line from FileLines: the bytes behind it may be read.
  LineKind read(std::string_view line, DumpHandler& handler);
  // Returns the schema of the last header.
  std::int64_t schema() const { return schema_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::int64_t schema_ = kNewestSchema;
};

}  // namespace dtrain::analysis
